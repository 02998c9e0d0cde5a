"""From a corpus to a prepared folder: read, encoded in tasks, and put together; an interrupted preparation goes on.

A corpus is cut by content, never by worker, into tasks of about 4 MB. The ids of each task become a file in a hidden
folder beside the prepared one, and a task whose file is there is not encoded again. In the end the files are put
together, and the folder takes its name. data/README.md describes all of these files.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

from gptmini.data.chats import join_chats, nothing_in
from gptmini.data.corpus import Corpus
from gptmini.data.meta import SPLITS, remedy, write_meta
from gptmini.data.recipe import Recipe, plan_recipe
from gptmini.data.splits import (
    BeginAgain,
    BuildTokenizer,
    Progress,
    SplitDocuments,
    Watcher,
    build_from,
)
from gptmini.data.store import TokenStore
from gptmini.data.tasks import (
    Task,
    cut_tasks,
    dtype_of,
    encode_task,
    in_order,
    join_split,
    part_path,
)
from gptmini.files import flush_file, naming, replacing
from gptmini.tokenizer import Tokenizer, from_dict
from gptmini.user_error import UserError
from gptmini.version import __version__

LOCK_POLL = 0.2  # seconds between two looks at whether another process has prepared the folder


def prepare(
    corpus: Corpus,
    build_tokenizer: BuildTokenizer,
    root: str | Path,
    *,
    n_workers: int = 1,
    watcher: Watcher | None = None,
) -> tuple[TokenStore, bool]:
    """Open the tokens of a corpus under a tokenizer, writing them first if they are not there.

    Args:
        corpus: the text, as gptmini.data.TextCorpus.
        build_tokenizer: a builder of gptmini.tokenizer, as gptmini.tokenizer.byte, or a functools.partial of one. It is
            called with the documents, which it may iterate several times; a long document comes in parts.
        root: folder that holds the prepared folders.
        n_workers: threads that encode. The result does not depend on their number.
        watcher: is told of the progress.

    Returns the store, and whether it had to be written.
    Raises UserError: a text that cannot be read or encoded, a split without text, or a damaged prepared folder.
    """
    watcher = watcher or Watcher()
    recipe = plan_recipe(corpus, build_tokenizer, root)
    folder = recipe.folder
    parts = folder.with_name(f".{folder.name}.parts")

    is_new = not folder.exists()
    # The parts of a finished folder are those of a process that was killed.
    if is_new or parts.exists():
        with _alone(folder, watcher):
            is_new = not folder.exists()  # unless another process has prepared it meanwhile
            if is_new:
                _Preparation(corpus, recipe, parts, n_workers, watcher).run(build_tokenizer)
            shutil.rmtree(parts, ignore_errors=True)

    if is_new:
        for note in corpus.notes():
            watcher.on_note(note)
    return _open(recipe), is_new


@contextmanager
def _alone(folder: Path, watcher: Watcher) -> Iterator[None]:
    """Let one process at a time prepare a folder; the others wait."""
    from filelock import FileLock, Timeout

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


def _open(recipe: Recipe) -> TokenStore:
    """Open a prepared folder that exists; UserError if it is damaged, or of another fingerprint."""
    folder = recipe.folder
    if not (folder / "meta.json").is_file():
        raise UserError(
            f"{folder} is not as it was prepared: meta.json is missing; {remedy(folder)}"
        )
    store = TokenStore(folder)
    if store.fingerprint != recipe.contents["fingerprint"]:  # a folder that was renamed by hand
        raise UserError(f"{folder} holds the tokens of another text or tokenizer; {remedy(folder)}")
    return store


class _Preparation:
    """The work of writing one prepared folder."""

    def __init__(
        self, corpus: Corpus, recipe: Recipe, parts: Path, n_workers: int, watcher: Watcher
    ) -> None:
        """Take what prepare was given; parts is the folder of what an interrupted preparation goes on from."""
        self.corpus = corpus
        self.recipe = recipe
        self.parts = parts
        self.n_workers = n_workers
        self.watcher = watcher
        self.documents = SplitDocuments(corpus, watcher)

    def run(self, build_tokenizer: BuildTokenizer) -> None:
        """Write the prepared folder.

        What is done stays on disk when the work is interrupted or the disk is full. A mistake in the text leaves
        nothing: the mended text is another one.
        """
        try:
            tokenizer, n_tasks = self._encoded(build_tokenizer)
            self.recipe.digests.check_unchanged()
            with naming(self.recipe.folder):
                self._join(tokenizer, n_tasks)
        except UserError:
            shutil.rmtree(self.parts, ignore_errors=True)
            raise

    def _encoded(self, build_tokenizer: BuildTokenizer) -> tuple[Tokenizer, int]:
        """Build the tokenizer and encode every task, again if documents were in the wrong splits.

        Returns the tokenizer and the number of tasks.
        """
        while True:
            tokenizer = self._tokenizer(build_tokenizer)
            try:
                return tokenizer, self._encode(tokenizer)
            except BeginAgain:
                shutil.rmtree(self.parts)

    def _tokenizer(self, build_tokenizer: BuildTokenizer) -> Tokenizer:
        """The tokenizer of an interrupted preparation, or else built from the documents and kept."""
        path = self.parts / "tokenizer.json"
        if path.is_file():
            kept = json.loads(path.read_bytes())
            if kept["version"] == __version__:
                self.documents.boundary = kept["boundary"]
                return from_dict(kept["tokenizer"])
            shutil.rmtree(self.parts)  # another version may cut a text into other tasks

        tokenizer = build_from(build_tokenizer, self.documents)
        self.recipe.digests.check_unchanged()  # before the tokenizer is kept for this text
        kept = {
            "version": __version__,
            "boundary": self.documents.boundary,
            "tokenizer": tokenizer.to_dict(),
        }
        self.parts.mkdir(exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps(kept).encode("utf-8"))
        return tokenizer

    def _encode(self, tokenizer: Tokenizer) -> int:
        """Encode every task that is not encoded yet; return the number of tasks."""
        n_tasks = 0
        n_found = 0
        n_encoded = 0  # bytes
        self.n_read = 0

        def encode_unless_done(task: Task, is_over: Event) -> bool:
            path = part_path(self.parts, task.number)
            if path.exists():
                return True
            encode_task(task, tokenizer, path, is_over, self.corpus)
            return False

        tasks = self._counted(cut_tasks(self.documents.read()))
        for n_bytes, was_done in in_order(encode_unless_done, tasks, self.n_workers):
            n_tasks += 1
            n_found += was_done
            n_encoded += n_bytes
            share = self.corpus.share_read()
            if share is not None and self.n_read:
                share *= n_encoded / self.n_read  # the text is read some tasks ahead
            self.watcher.on_progress(Progress(phase="tokenising", n_bytes=n_encoded, share=share))
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

    def _join(self, tokenizer: Tokenizer, n_tasks: int) -> None:
        """Put the tasks together, in a folder that takes its name when it is complete."""
        joined = self.parts / "joined"
        shutil.rmtree(joined, ignore_errors=True)  # of a process that was killed
        joined.mkdir()
        self.watcher.on_progress(
            Progress(phase="putting the parts together", n_bytes=0, share=None)
        )

        meta = self.recipe.contents | {
            "dtype": dtype_of(tokenizer, self.corpus.loss_on).name,
            "tokenizer": tokenizer.to_dict(),
        }
        byte_lengths = None
        chats = None
        if self.corpus.template is not None:
            byte_lengths = tokenizer.byte_lengths()
            chats = join_chats(part_path(self.parts, number) for number in range(n_tasks))
        for split in SPLITS:
            meta[split] = join_split(split, self.parts, n_tasks, joined, byte_lengths)
            if not meta[split].get("counted", meta[split]["bytes"]):
                raise UserError(nothing_in(split, chats, self.corpus.loss_on))
        write_meta(joined, meta)

        folder = self.recipe.folder
        skipped = self.corpus.skipped()
        if chats is not None:
            skipped += chats.skipped()
            for note in chats.notes(self.corpus.loss_on):
                self.watcher.on_note(note)
        if skipped:
            with (joined / "skipped.txt").open("wb") as file:
                file.write(skipped.encode("utf-8", errors="replace"))
                flush_file(file)
            self.watcher.on_note(
                f"records that were left out are listed in {folder / 'skipped.txt'}"
            )
        joined.rename(folder)
