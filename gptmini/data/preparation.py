"""From a corpus to a prepared folder: read, encoded in tasks, and put together; an interrupted preparation goes on.

A corpus is cut by content, never by worker, into tasks of about 4 MB. The ids of each task become a file in a hidden
folder beside the prepared one, and a task whose file is there is not encoded again. In the end the files are put
together, and the folder takes its name. data/README.md describes all of these files.
"""

import hashlib
import json
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import numpy as np

from gptmini.data.chats import ChatReport, encode_chats, join_chats, nothing_in
from gptmini.data.corpus import Corpus, Document
from gptmini.data.splits import (
    BeginAgain,
    BuildTokenizer,
    Progress,
    SplitDocuments,
    Watcher,
    build_from,
    n_bytes_of,
)
from gptmini.data.store import (
    FORMAT,
    SPLITS,
    TokenStore,
    block_checksums,
    digest_of_json,
    remedy,
    without_marks,
    write_meta,
)
from gptmini.files import flush_file, naming, replacing
from gptmini.tokenizer import Tokenizer, before_documents, from_dict
from gptmini.user_error import UserError
from gptmini.version import __version__

# Bytes of text in a task. A task is held in memory whole, a kill costs the running tasks, and the last one runs alone.
TASK = 2**22
# Parts of documents in a task; Python needs a few hundred bytes for each of them while the task is in memory.
MOST_PARTS = 2**17
# Seconds after a file's last change in which its digest is not kept: a later change within the file system's
# resolution of time would leave the stamp as it is. FAT has the coarsest, two seconds.
SETTLING = 2
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


class Recipe(NamedTuple):
    """What prepared tokens follow from, and where they belong."""

    contents: dict  # format, source, builder, and their fingerprint, as meta.json holds them
    folder: Path
    digests: "Digests"  # of the files of the text


def plan_recipe(corpus: Corpus, build_tokenizer: BuildTokenizer, root: str | Path) -> Recipe:
    """Find out what the tokens of a corpus under a tokenizer follow from; root is made if it is not there.

    Raises UserError: a file of the text cannot be read.
    """
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    builder = partial(build_tokenizer)  # which is the same for a partial
    kind = builder.func.__name__

    digests = Digests(root / ".digests.json")
    contents: dict = {
        "format": FORMAT,
        "source": {"corpus": corpus.name, **corpus.identity(digests.of)},
        "builder": {"name": kind, **builder.keywords},
    }
    digests.save()
    contents["fingerprint"] = digest_of_json(contents)
    folder = root / f"{corpus.name}-{kind}-{contents['fingerprint'][:12]}"
    return Recipe(contents, folder, digests)


class Digests:
    """The SHA-256 digests of files, kept with what tells that a file is as it was when it was read."""

    def __init__(self, cache: Path) -> None:
        """Take over the digests that an earlier process kept in the file `cache`, which need not exist."""
        self._cache = cache
        # Stamps of the files that this process has asked for.
        self._seen: dict[Path, list[int]] = {}
        # By path, the stamp of the file and its digest.
        self._known: dict[str, list] = {}
        with suppress(OSError, ValueError):
            self._known = json.loads(cache.read_bytes())
        self._has_new = False

    def of(self, path: Path) -> str:
        """Digest of a file, in hexadecimal: read now, or known from its stamp."""
        name = str(path.absolute())
        stamp = self._seen[path] = _stamp(path)
        *known_stamp, digest = self._known.get(name, [None])
        if known_stamp == stamp:
            return digest

        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if max(stamp[1:]) / 1e9 < time.time() - SETTLING and _stamp(path) == stamp:
            self._known[name] = [*stamp, digest]
            self._has_new = True
        return digest

    def check_unchanged(self) -> None:
        """Raise UserError if a file is no longer as it was when its digest was asked for."""
        for path, stamp in self._seen.items():
            if not path.exists() or _stamp(path) != stamp:
                raise UserError(
                    f"{path} must stay as it is while it is read, and it was changed; try again"
                )

    def save(self) -> None:
        """Keep the digests for the next process."""
        if self._has_new:
            # Where the folder cannot be written, as that of another user, files are read again at the next start.
            with suppress(OSError), replacing(self._cache) as file:
                file.write(json.dumps(self._known, indent=0).encode("utf-8"))


def _stamp(path: Path) -> list[int]:
    """Size of a file in bytes, and the times of its last changes, in nanoseconds.

    The first time is that of the content, which a program can set back; the second, which no program can set, is that
    of anything about the file.
    """
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


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


class Task(NamedTuple):
    """Some of a corpus's text, in its order."""

    number: int  # from 0
    documents: list[Document]  # and parts of documents, each with its split
    n_bytes: int  # UTF-8 bytes of text
    begins: bool  # whether the first part begins its document


def cut_tasks(documents: Iterable[Document]) -> Iterator[Task]:
    """Cut documents into tasks; the last part of a corpus must end its document."""
    number = 0
    some: list[Document] = []
    n_bytes = 0
    begins = True  # whether the first part begins its document
    ends = True  # whether the last part ends its document

    for document in documents:
        some.append(document)
        n_bytes += n_bytes_of(document.text)
        ends = document.ends
        if n_bytes >= TASK or len(some) >= MOST_PARTS:
            yield Task(number, some, n_bytes, begins)
            number += 1
            some = []
            n_bytes = 0
            begins = ends

    assert ends, "the last part of a corpus must end its document"
    if some:
        yield Task(number, some, n_bytes, begins)


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


def in_order(
    work: Callable[[Task, Event], bool], tasks: Iterable[Task], n_workers: int
) -> Iterator[tuple[int, bool]]:
    """Do the work of tasks in threads, and yield the bytes and the result of each task, in the order of the tasks.

    Args:
        work: gives the result of a task. It is also given an event: once that is set, the result is no longer wanted.
        tasks: the tasks, of which at most two a worker are in memory.
        n_workers: threads. Threads are enough, because the tokenizers spend their time outside Python.
    """
    running: deque[tuple[int, Future[bool]]] = deque()
    is_over = Event()
    with ThreadPoolExecutor(n_workers) as threads:
        try:
            for task in tasks:
                running.append((task.n_bytes, threads.submit(work, task, is_over)))
                if len(running) >= 2 * n_workers:
                    n_bytes, result = running.popleft()
                    yield n_bytes, result.result()
            for n_bytes, result in running:
                yield n_bytes, result.result()
        finally:
            is_over.set()
            threads.shutdown(wait=False, cancel_futures=True)


class EncodedSplit:
    """What a task has of a split."""

    def __init__(self) -> None:
        self.ids: list[np.ndarray] = []  # uint32 (n,) each
        self.ends: list[int] = []  # number of ids up to where each document ends
        self.n_ids = 0
        self.n_bytes = 0

    def add(self, ids: np.ndarray) -> None:
        """Append ids."""
        self.ids.append(ids)
        self.n_ids += len(ids)


def encode_task(
    task: Task, tokenizer: Tokenizer, path: Path, is_over: Event, corpus: Corpus
) -> None:
    """Encode a task and write its ids to a file, whole or not at all; nothing if the result is no longer wanted."""
    splits: dict[str | None, EncodedSplit] = {split: EncodedSplit() for split in SPLITS}
    before = np.array(before_documents(tokenizer), dtype=np.uint32)
    end = np.array([tokenizer.end_of_text or 0], dtype=np.uint32)
    report = ChatReport()
    all_ids: Iterator[np.ndarray | None]
    if corpus.template is None:
        all_ids = tokenizer.encode_batch(document.text for document in task.documents)
    else:
        all_ids = encode_chats(task.documents, tokenizer, corpus, report)
        before = before[:0]  # a template writes its own
        if corpus.loss_on == "answers":
            end = ~end.astype(np.int64)

    begins = task.begins
    for document, ids in zip(task.documents, all_ids, strict=True):
        if is_over.is_set():
            return
        if ids is None:
            continue
        encoded = splits[document.split]
        if begins:
            encoded.add(before)
        encoded.add(ids)
        encoded.n_bytes += n_bytes_of(document.text)
        begins = document.ends
        if document.ends:
            if tokenizer.end_of_text is not None:
                encoded.add(end)
            encoded.ends.append(encoded.n_ids)

    arrays: dict[str, Any] = {}
    none = np.array([], dtype=np.uint32)
    for split, encoded in splits.items():
        ids = np.concatenate([none, *encoded.ids])
        arrays[f"{split}_ids"] = ids.astype(dtype_of(tokenizer, corpus.loss_on))
        arrays[f"{split}_ends"] = np.array(encoded.ends, dtype=np.uint64)
        arrays[f"{split}_bytes"] = np.array(encoded.n_bytes)
    if corpus.template is not None:
        in_json = json.dumps(asdict(report)).encode()
        arrays["chats"] = np.frombuffer(in_json, dtype=np.uint8)
    with replacing(path) as file:
        np.savez(file, **arrays)


def join_split(
    split: str, parts: Path, n_tasks: int, folder: Path, byte_lengths: np.ndarray | None = None
) -> dict:
    """Write the ids of a split and the index of its documents; return what meta.json says of them.

    byte_lengths, (n_vocab,), are those of the ids of chats, whose text is not that of their documents.
    """
    n_documents = 0
    n_bytes = 0
    n_tokens = 0
    largest_id = 0
    counted: Counter[str] = Counter()  # what the loss counts of chats
    paths = [folder / f"{split}.bin", folder / f"{split}.index"]
    with paths[0].open("wb") as ids_file, paths[1].open("wb") as index_file:
        for number in range(n_tasks):
            with np.load(part_path(parts, number)) as part:
                ids = part[f"{split}_ids"]
                ends = part[f"{split}_ends"]
                n_bytes += int(part[f"{split}_bytes"]) if byte_lengths is None else 0
            ids_file.write(ids.tobytes())
            index_file.write((ends + np.uint64(n_tokens)).astype("<u8").tobytes())
            n_documents += len(ends)
            n_tokens += len(ids)
            largest_id = max(largest_id, int(without_marks(ids).max(initial=0)))
            if byte_lengths is not None:
                n_bytes += int(byte_lengths[without_marks(ids)].sum())
                answers = ids[ids >= 0]
                counted["counted"] += len(answers)
                counted["counted_bytes"] += int(byte_lengths[answers].sum())
        flush_file(ids_file)
        flush_file(index_file)

    return {
        "documents": n_documents,
        "bytes": n_bytes,
        "tokens": n_tokens,
        "largest_id": largest_id,
        "crc32": block_checksums(paths[0]),
        "index_crc32": block_checksums(paths[1]),
        **counted,
    }


def part_path(parts: Path, number: int) -> Path:
    """The file of the task with this number."""
    return parts / f"{number:06}.npz"


def dtype_of(tokenizer: Tokenizer, loss_on: str = "all") -> np.dtype:
    """Type of the ids in a file: two bytes where they suffice, else four; with a sign for the loss on answers alone."""
    if loss_on == "answers":
        return np.dtype("<i4")
    return np.dtype("<u2" if tokenizer.n_vocab <= 2**16 else "<u4")
