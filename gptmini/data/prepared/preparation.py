"""Prepare a corpus: encode its text in tasks, and join the tasks into a prepared folder.

A corpus is cut into tasks of about 4 MB. The cuts depend only on the text, never on the number of workers. Each task
writes its ids to a file in a hidden folder. An interrupted preparation encodes only the tasks without a file. The
joined files are written into a temporary folder, which gets the name of the prepared folder when it is complete.
data/README.md describes all of these files.
"""

import shutil
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event

from filelock import FileLock, Timeout

from gptmini.console.progress import Progress, Watcher
from gptmini.data.corpus import Corpus
from gptmini.data.prepared.chat_tokens import join_reports, nothing_in
from gptmini.data.prepared.digests import Digests
from gptmini.data.prepared.meta import (
    FORMAT,
    SPLITS,
    digest_of_json,
    folder_ending_with,
    read_meta,
    remedy,
    write_meta,
)
from gptmini.data.prepared.splits import BuildTokenizer, SplitDocuments, SplitsChanged, build_from
from gptmini.data.prepared.store import TokenStore
from gptmini.data.prepared.task_files import TaskFiles, join_split
from gptmini.data.prepared.tasks import Task, cut_tasks, dtype_of, encode_task, in_order
from gptmini.system.errors import UserError
from gptmini.system.files import naming, replacing
from gptmini.tokenizer import Tokenizer, with_chat_template


def prepare(
    corpus: Corpus,
    build_tokenizer: BuildTokenizer,
    root: str | Path,
    *,
    n_workers: int = 1,
    watcher: Watcher | None = None,
) -> tuple[TokenStore, bool]:
    """Open the tokens of a corpus. If the tokens do not exist, encode the corpus and write the tokens.

    Args:
        corpus: the text, such as a gptmini.data.TextCorpus, or token files, or a mixture.
        build_tokenizer: a builder of gptmini.tokenizer, such as gptmini.tokenizer.byte, or a functools.partial of a
            builder. The builder receives the documents and may iterate over them several times. A long document
            arrives in parts.
        root: folder of the prepared folders.
        n_workers: number of threads that encode. The result does not depend on this number.
        watcher: receives progress and notes.

    Returns the token store, and whether this call wrote the tokens.
    Raises UserError if text cannot be read or encoded, if a split has no text, or if the prepared folder is damaged.
    """
    preparation = Preparation(
        corpus,
        build_tokenizer,
        Path(root),
        n_workers=n_workers,
        watcher=watcher or Watcher(),
    )
    if isinstance(corpus, LinkedCorpus):
        is_new = corpus.link(preparation)
    else:
        is_new = preparation.encode()

    if is_new:
        for note in corpus.notes():
            preparation.watcher.on_note(note)
    return preparation.open(), is_new


class LinkedCorpus(Corpus):
    """A corpus whose tokens are in other files or folders. Its prepared folder contains only meta.json."""

    is_text = False

    @abstractmethod
    def link(self, preparation: "Preparation") -> bool:
        """Write the folder with preparation.write_links, unless it is up to date. Return whether this call wrote it."""


class Preparation:
    """The steps that write one prepared folder."""

    def __init__(
        self,
        corpus: Corpus,
        build_tokenizer: BuildTokenizer,
        root: Path,
        *,
        n_workers: int,
        watcher: Watcher,
    ) -> None:
        self.corpus = corpus
        self.build_tokenizer = build_tokenizer
        self.n_workers = n_workers
        self.watcher = watcher
        self.documents = SplitDocuments(corpus, watcher)

        # If build_tokenizer is a partial, this partial has the same function and keywords.
        builder = partial(build_tokenizer)
        self.kind = builder.func.__name__

        root.mkdir(parents=True, exist_ok=True)
        self.digests = Digests(root / ".digests.json")
        # The first keys of meta.json. They determine the tokens.
        self.contents: dict = {
            "format": FORMAT,
            "source": {"corpus": corpus.name, **corpus.identity(self.digests.of)},
            "builder": {"name": self.kind, **builder.keywords},
        }
        self.contents["fingerprint"] = digest_of_json(self.contents)
        self.digests.save()

        ending = f"{self.kind}-{self.contents['fingerprint'][:12]}"
        self.folder = folder_ending_with(root, corpus.folder_name or corpus.name, ending)
        self.task_files = TaskFiles(self.folder)

    def open(self) -> TokenStore:
        """Open the prepared folder. Raise UserError if it is damaged or has a different fingerprint."""
        if not (self.folder / "meta.json").is_file():
            raise UserError(
                f"{self.folder} is damaged: meta.json is missing; {remedy(self.folder)}"
            )
        store = TokenStore(self.folder)
        if store.fingerprint != self.contents["fingerprint"]:  # somebody renamed a folder
            raise UserError(
                f"{self.folder} contains tokens from a different text or a different tokenizer; {remedy(self.folder)}"
            )
        return store

    def existing_meta(self) -> dict | None:
        """Return the content of meta.json in the folder, or None if there is no such file."""
        return read_meta(self.folder) if (self.folder / "meta.json").is_file() else None

    def write_links(self, tokenizer: Tokenizer, dtype: str, more: dict) -> None:
        """Write a folder whose tokens are in other folders or files. `more` are the other keys of meta.json."""
        self.digests.check_unchanged()
        write_meta(
            self.folder,
            self.contents | {"dtype": dtype, "tokenizer": tokenizer.to_dict()} | more,
        )

    def encode(self) -> bool:
        """Encode the documents unless the folder exists. Return whether this call wrote the folder.

        Only one process at a time encodes. Encoded tasks stay on disk if the work is interrupted or the disk is full.
        After an error in the text, encoded tasks are deleted, because the corrected text will have a different
        fingerprint.
        """
        # A process that was killed may leave the tasks of a finished folder.
        if self.folder.exists() and not self.task_files.folder.exists():
            return False
        with _locked(self.folder, self.watcher):
            is_new = not self.folder.exists()  # another process may have prepared it meanwhile
            try:
                if is_new:
                    self._encode_and_join()
            except UserError:
                self.task_files.delete()
                raise
            self.task_files.delete()
        return is_new

    def _encode_and_join(self) -> None:
        while True:
            tokenizer = self._saved_or_new_tokenizer()
            try:
                n_tasks = self._encode_tasks(tokenizer)
                break
            except SplitsChanged:  # the tokenizer and the tasks belong to the wrong splits
                shutil.rmtree(self.task_files.folder)

        self.digests.check_unchanged()
        with naming(self.folder):
            self._join(tokenizer, [self.task_files.path_of(number) for number in range(n_tasks)])

    def _saved_or_new_tokenizer(self) -> Tokenizer:
        saved = self.task_files.load_tokenizer()
        if saved is not None:
            tokenizer, self.documents.boundary = saved
            return tokenizer

        tokenizer = build_from(self.build_tokenizer, self.documents)
        if self.corpus.template is not None:
            tokenizer = with_chat_template(tokenizer)
        self.digests.check_unchanged()  # the saved tokenizer must belong to this text
        self.task_files.save_tokenizer(tokenizer, self.documents.boundary)
        return tokenizer

    def _encode_tasks(self, tokenizer: Tokenizer) -> int:
        """Encode each task that has no file. Return the number of all tasks."""
        n_tasks = 0
        n_done_before = 0
        n_read = 0  # bytes of text
        n_encoded = 0

        def encode_unless_done(task: Task, is_over: Event) -> tuple[int, bool]:
            path = self.task_files.path_of(task.number)
            was_done = path.exists()
            if not was_done:
                encode_task(task, tokenizer, path, is_over, self.corpus)
            return task.n_bytes, was_done

        def counted_tasks() -> Iterator[Task]:
            nonlocal n_read
            for task in cut_tasks(self.documents.read()):
                n_read += task.n_bytes
                yield task

        for n_bytes, was_done in in_order(encode_unless_done, counted_tasks(), self.n_workers):
            n_tasks += 1
            n_done_before += was_done
            n_encoded += n_bytes
            share = self.corpus.share_read()
            if share is not None and n_read:
                share *= n_encoded / n_read  # some tasks were read, but not yet encoded
            self.watcher.on_progress(Progress(phase="tokenising", n_bytes=n_encoded, share=share))

        if n_done_before:
            self.watcher.on_note(
                f"resumed an interrupted preparation: {n_done_before} of {n_tasks} parts were already tokenised"
            )
        return n_tasks

    def _join(self, tokenizer: Tokenizer, paths: list[Path]) -> None:
        """Join the files of all tasks in a temporary folder, and give this folder the name of the prepared folder."""
        self.watcher.on_progress(Progress(phase="joining the parts"))
        joined = self.task_files.new_folder()
        loss_on = self.corpus.loss_on
        is_chat = self.corpus.template is not None
        byte_lengths = tokenizer.byte_lengths() if is_chat else None
        report = join_reports(paths) if is_chat else None

        meta = self.contents | {
            "dtype": dtype_of(tokenizer, loss_on).name,
            "tokenizer": tokenizer.to_dict(),
        }
        for split in SPLITS:
            meta[split] = join_split(split, paths, joined, byte_lengths)
            if not meta[split].get("counted", meta[split]["bytes"]):
                raise UserError(nothing_in(split, report, loss_on))
        write_meta(joined, meta)

        skipped = self.corpus.skipped()
        if report is not None:
            skipped += report.refused.listed()
            for note in report.notes(loss_on):
                self.watcher.on_note(note)
        if skipped:
            with replacing(joined / "skipped.txt") as file:
                file.write(skipped.encode("utf-8", errors="replace"))
            self.watcher.on_note(f"skipped records are listed in {self.folder / 'skipped.txt'}")
        joined.rename(self.folder)


@contextmanager
def _locked(folder: Path, watcher: Watcher) -> Iterator[None]:
    path = folder.with_name(f".{folder.name}.lock")
    lock = FileLock(path)
    try:
        with naming(path):
            lock.acquire(timeout=0)
    except Timeout:
        watcher.on_note(f"waiting for another process that prepares {folder}")
        lock.acquire(poll_interval=0.2)  # seconds
    try:
        yield
    finally:
        # Windows cannot delete an open file, so the lock file stays on Windows.
        with suppress(PermissionError):
            path.unlink(missing_ok=True)
        lock.release()
