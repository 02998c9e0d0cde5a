"""From a corpus to a prepared folder: read, encoded in tasks, and put together; an interrupted preparation goes on."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import numpy as np

from gptmini.data.corpus import Corpus
from gptmini.data.encoder import BuildEncoder, Encoder, dtype_of, end_of
from gptmini.data.format import SPLITS
from gptmini.data.meta import remedy, write_meta
from gptmini.data.preparation.assembly import assemble, census_of
from gptmini.data.preparation.parts import Parts
from gptmini.data.preparation.recipes import Recipe, difference_from_others, plan_recipe
from gptmini.data.preparation.split_documents import SplitDocuments, rule_for, share_read
from gptmini.data.preparation.tasks import Task, cut_tasks, in_order
from gptmini.data.preparation.watching import Progress, Watcher
from gptmini.data.store import TokenStore
from gptmini.files import flush_file, naming, new_folder, replacing
from gptmini.user_error import UserError

# Copies of the ids that are on disk at once: those of the tasks, and the files that they are put together to.
COPIES = 2
LOCK_POLL = 0.2  # seconds between two looks at whether another process has prepared the folder


def prepare(
    corpus: Corpus,
    build_encoder: BuildEncoder,
    root: str | Path,
    *,
    rebuild: Callable[[dict], Encoder] | None = None,
    n_workers: int = 1,
    watcher: Watcher | None = None,
) -> tuple[TokenStore, bool]:
    """Open the tokens of a corpus under a tokenizer, writing them first if they are not there.

    Args:
        corpus: the text.
        build_encoder: a builder of gptmini.tokenizer, or a functools.partial of one. It is called with the documents,
            which it may iterate several times; a long document comes in parts.
        root: folder that holds the prepared folders.
        rebuild: makes a tokenizer from its to_dict(), so that an interrupted preparation need not build it again, and
            that the store has its tokenizer.
        n_workers: threads that encode. The result does not depend on their number.
        watcher: is told of the progress.

    Returns the store, and whether it had to be written.
    Raises UserError: a text that cannot be read or encoded, a split without text, or a damaged prepared folder.
    """
    watcher = watcher or Watcher()
    recipe = plan_recipe(corpus, build_encoder, root)
    is_new = not recipe.folder.exists()
    if not is_new:
        _remove_left_over(recipe.folder)
    else:
        with _alone(recipe.folder, watcher):
            recipe.digests.save()
            is_new = not recipe.folder.exists()  # unless another process has prepared it meanwhile
            if is_new:
                difference = difference_from_others(recipe)
                if difference is not None:
                    watcher.on_note(difference)
                _Preparation(corpus, recipe, n_workers, watcher).run(build_encoder, rebuild)

    recipe.digests.save()
    return _open(recipe, rebuild), is_new


def open_prepared(
    corpus: Corpus, build_encoder: BuildEncoder, root: str | Path
) -> TokenStore | None:
    """Open the tokens of a corpus under a tokenizer, without writing anything; None if they are not there.

    The arguments are those of prepare.
    Raises UserError: a text that cannot be read, or a damaged prepared folder.
    """
    recipe = plan_recipe(corpus, build_encoder, root)
    return _open(recipe) if recipe.folder.exists() else None


def _open(recipe: Recipe, rebuild: Callable[[dict], Encoder] | None = None) -> TokenStore:
    """Open a prepared folder that exists; UserError if it is damaged, or of another fingerprint."""
    folder = recipe.folder
    if not (folder / "meta.json").is_file():
        raise UserError(
            f"{folder} is not as it was prepared: meta.json is missing; {remedy(folder)}"
        )
    store = TokenStore(folder, rebuild=rebuild)
    if store.fingerprint != recipe.fingerprint:  # a folder that was renamed by hand
        raise UserError(f"{folder} holds the tokens of another text or tokenizer; {remedy(folder)}")
    return store


def _parts_folder(folder: Path) -> Path:
    """Where the encoded tasks of a prepared folder lie until they are put together: beside it, on the same disk."""
    return folder.with_name(f".{folder.name}.parts")


def _remove_left_over(folder: Path) -> None:
    """Delete what a process left that was killed just after it had put a prepared folder together."""
    from filelock import FileLock, Timeout

    parts = _parts_folder(folder)
    if not parts.is_dir():
        return
    path = folder.with_name(f".{folder.name}.lock")
    with suppress(OSError, Timeout), FileLock(path, timeout=0):
        shutil.rmtree(parts, ignore_errors=True)
        path.unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path, watcher: Watcher) -> Iterator[None]:
    """Let one process at a time prepare a folder; the others wait."""
    from filelock import FileLock, Timeout

    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f".{folder.name}.lock")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        watcher.on_note(f"another process prepares {folder}; waiting for it")
        lock.acquire(poll_interval=LOCK_POLL)
    try:
        yield
    finally:
        # Windows deletes no file that is open; there the lock's file stays.
        with suppress(PermissionError):
            path.unlink(missing_ok=True)
        lock.release()


class NoRoomError(UserError):
    """The disk is too small; what is done so far is kept."""


class _Preparation:
    """The work of writing one prepared folder."""

    def __init__(self, corpus: Corpus, recipe: Recipe, n_workers: int, watcher: Watcher) -> None:
        self.corpus = corpus
        self.recipe = recipe
        self.n_workers = n_workers
        self.watcher = watcher
        self.parts_folder = _parts_folder(recipe.folder)
        self.has_checked_disk = False
        self.n_read = 0  # UTF-8 bytes of text in the tasks that have been cut

    def run(self, build_encoder: BuildEncoder, rebuild: Callable[[dict], Encoder] | None) -> None:
        """Write the prepared folder.

        What is done stays on disk when the work is interrupted or the disk is full. A mistake in the text leaves
        nothing: the mended text is another one.
        """
        try:
            with naming(self.parts_folder):
                self.parts_folder.mkdir(exist_ok=True)
            encoder = self._encoder(build_encoder, rebuild)
            parts = Parts(self.parts_folder, dtype_of(encoder))
            n_parts = self._encode(parts, encoder)
            self.recipe.digests.check_unchanged()
            self._assemble(parts, n_parts, encoder)
        except NoRoomError:
            raise
        except UserError:
            shutil.rmtree(self.parts_folder, ignore_errors=True)
            raise
        shutil.rmtree(self.parts_folder, ignore_errors=True)

    def _encoder(
        self, build_encoder: BuildEncoder, rebuild: Callable[[dict], Encoder] | None
    ) -> Encoder:
        """The tokenizer: that of an interrupted preparation, or built from the documents."""
        path = self.parts_folder / "tokenizer.json"
        if rebuild is not None and path.is_file():
            # A file that this class did not write is passed over, and the tokenizer built again.
            with suppress(ValueError, RecursionError):
                return rebuild(json.loads(path.read_text(encoding="utf-8")))

        encoder = build_encoder(SplitDocuments(self.corpus, self.watcher))
        self.recipe.digests.check_unchanged()  # before the tokenizer is kept for this text
        with replacing(path) as file:
            file.write(json.dumps(encoder.to_dict()).encode("utf-8"))
        return encoder

    def _encode(self, parts: Parts, encoder: Encoder) -> int:
        """Encode every task that is not encoded yet; return the number of tasks."""
        n_tasks = 0
        n_bytes = 0
        n_found = 0

        def encode_unless_done(task: Task, is_over: Event) -> tuple[Task, bool]:
            if parts.holds(task):
                return task, True
            _encode_task(task, encoder, parts, is_over)
            return task, False

        tasks = self._counted(cut_tasks(self.corpus.documents()))
        for task, was_done in in_order(encode_unless_done, tasks, self.n_workers):
            n_tasks += 1
            n_bytes += task.n_bytes
            n_found += was_done
            self._check_disk(parts, task)
            self._tell_tokenised(n_bytes)
        if n_found:
            self.watcher.on_note(
                f"{n_found} of {n_tasks} parts of the text had been tokenised by an earlier start"
            )
        return n_tasks

    def _counted(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """Count the bytes of tasks as they are cut."""
        for task in tasks:
            self.n_read += task.n_bytes
            yield task

    def _check_disk(self, parts: Parts, task: Task) -> None:
        """Raise UserError if the disk has no room for what the first task lets expect of the whole text."""
        share = share_read(self.corpus)
        if self.has_checked_disk or not share or not task.n_bytes:
            return
        self.has_checked_disk = True

        n_all = self.n_read / share  # bytes of text
        expected = COPIES * n_all * parts.size_of(task.number) / task.n_bytes
        there = parts.size()
        free = shutil.disk_usage(self.parts_folder).free
        if expected > there + free:
            raise NoRoomError(
                f"{self.recipe.folder.parent} must have about {expected / 1e9:,.1f} GB for tokens while they are "
                f"prepared, got {(there + free) / 1e9:,.1f} GB; make room, or choose another data_dir"
            )

    def _assemble(self, parts: Parts, n_parts: int, encoder: Encoder) -> None:
        """Put the tasks together, in a folder that takes its name when it is complete."""
        rule = rule_for(self.corpus, census_of(parts, n_parts))
        if rule.note is not None:
            self.watcher.on_note(rule.note)

        place = self.recipe.folder
        with new_folder(place, is_locked=True) as temporary:
            splits = assemble(parts, n_parts, rule, encoder, temporary, place=place)
            for split in SPLITS:
                if not splits[split]["bytes"]:
                    raise UserError(f"the {split} split must hold text, got none; give more text")

            meta = self.recipe.contents | {
                "dtype": dtype_of(encoder).name,
                "tokenizer": encoder.to_dict(),
                **splits,
            }
            self._write_skipped(temporary)
            write_meta(temporary, meta, place=place)

    def _write_skipped(self, folder: Path) -> None:
        """List the records that were left out in a file of the prepared folder."""
        skipped = getattr(self.corpus, "skipped", None)
        listed = "" if skipped is None else skipped.listed()
        if not listed:
            return
        place = self.recipe.folder
        with naming(place), (folder / "skipped.txt").open("wb") as file:
            file.write(listed.encode("utf-8", errors="replace"))
            flush_file(file)
        self.watcher.on_note(f"records that were left out are listed in {place / 'skipped.txt'}")

    def _tell_tokenised(self, n_bytes: int) -> None:
        """Tell the watcher how many bytes of text are encoded; the text is read some tasks ahead."""
        share = share_read(self.corpus)
        if share is not None and self.n_read:
            share *= n_bytes / self.n_read
        self.watcher.on_progress(Progress(phase="tokenising", n_bytes=n_bytes, share=share))


def _encode_task(task: Task, encoder: Encoder, parts: Parts, is_over: Event) -> None:
    """Encode a task and keep it as a part, unless the result is no longer wanted."""
    end = end_of(encoder)
    ends = task.rows["ends"]
    texts = (text.decode() for text in task.texts)
    ids = []
    for i, some in enumerate(encoder.encode_batch(texts)):
        if is_over.is_set():
            return
        ids.append(np.concatenate((some, end)) if ends[i] and len(end) else some)
    parts.write(task, ids)
