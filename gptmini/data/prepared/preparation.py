"""Prepare a corpus. Encode the text in tasks, and join the tasks. An interrupted preparation can be resumed.

A corpus is cut into tasks of about 4 MB. The cuts depend only on the text, never on the number of workers. Each task
writes its ids to a file in a hidden folder next to the prepared folder. A task that already has a file is not
encoded a second time. At the end, the files are joined in a temporary folder. This folder is renamed to the prepared
folder when it is complete. data/README.md describes all of these files.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event

from gptmini.data.corpus import Corpus
from gptmini.data.prepared.chat_tokens import join_chats, nothing_in
from gptmini.data.prepared.digests import Digests
from gptmini.data.prepared.meta import FORMAT, SPLITS, digest_of_json, read_meta, remedy, write_meta
from gptmini.data.prepared.splits import (
    BuildTokenizer,
    Progress,
    SplitDocuments,
    SplitsChanged,
    Watcher,
    build_from,
)
from gptmini.data.prepared.store import TokenStore
from gptmini.data.prepared.tasks import (
    Task,
    cut_tasks,
    dtype_of,
    encode_task,
    in_order,
    join_split,
    part_path,
)
from gptmini.system.errors import UserError
from gptmini.system.files import flush_file, naming, replacing
from gptmini.system.version import __version__
from gptmini.tokenizer import Tokenizer, from_dict, with_chat_template


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
        root,
        n_workers=n_workers,
        watcher=watcher or Watcher(),
    )
    is_new = corpus.prepare_tokens(preparation)
    if is_new:
        for note in corpus.notes():
            preparation.watcher.on_note(note)
    return preparation.open(), is_new


@contextmanager
def _locked(folder: Path, watcher: Watcher) -> Iterator[None]:
    from filelock import FileLock, Timeout

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


def _folder_of(root: Path, name: str, ending: str) -> Path:
    """Return the prepared folder in root whose name ends with the tokenizer and the fingerprint.

    The folder may begin with another name than `name`, because the text was renamed, or because an earlier version of
    gptmini prepared it. If no such folder exists, return the folder of an interrupted preparation, or a new folder.
    """
    folder = root / f"{name}-{ending}"
    if folder.exists():
        return folder
    interrupted = sorted(root.glob(f".*-{ending}.parts"))
    named_before = [
        root / path.name.removeprefix(".").removesuffix(".parts") for path in interrupted
    ]
    return next(iter([*sorted(root.glob(f"[!.]*-{ending}")), *named_before]), folder)


class Preparation:
    """The steps that write one prepared folder."""

    def __init__(
        self,
        corpus: Corpus,
        build_tokenizer: BuildTokenizer,
        root: str | Path,
        *,
        n_workers: int,
        watcher: Watcher,
    ) -> None:
        self.corpus = corpus
        self.build_tokenizer = build_tokenizer
        self.n_workers = n_workers
        self.watcher = watcher
        root = Path(root)
        root.mkdir(parents=True, exist_ok=True)
        # The function of a partial of a partial is the inner function.
        builder = partial(build_tokenizer)
        self.kind = builder.func.__name__
        self.digests = Digests(root / ".digests.json")
        # The format, the source, the builder and the fingerprint, as in meta.json.
        self.contents: dict = {
            "format": FORMAT,
            "source": {"corpus": corpus.name, **corpus.identity(self.digests.of)},
            "builder": {"name": self.kind, **builder.keywords},
        }
        self.digests.save()
        self.contents["fingerprint"] = digest_of_json(self.contents)
        ending = f"{self.kind}-{self.contents['fingerprint'][:12]}"
        self.folder = _folder_of(root, corpus.folder_name, ending)
        # The encoded tasks and the tokenizer of a running or interrupted preparation.
        self.parts = self.folder.with_name(f".{self.folder.name}.parts")
        self.documents = SplitDocuments(corpus, watcher)

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

    def known_meta(self) -> dict | None:
        """Return the content of meta.json in the folder, or None if there is no such file."""
        return read_meta(self.folder) if (self.folder / "meta.json").is_file() else None

    def write_links(self, tokenizer: Tokenizer, dtype: str, contents: dict) -> None:
        """Write a folder whose tokens are in other folders or files. `contents` are more keys of meta.json."""
        self.digests.check_unchanged()
        write_meta(
            self.folder,
            self.contents | {"dtype": dtype, "tokenizer": tokenizer.to_dict()} | contents,
        )

    def encode(self) -> bool:
        """Encode the documents unless the folder exists. Return whether this call wrote the folder.

        Only one process at a time encodes. Encoded tasks stay on disk if the work is interrupted or the disk is full.
        After an error in the text, encoded tasks are deleted, because the corrected text will have a different
        fingerprint.
        """
        is_new = not self.folder.exists()
        # A process that was killed may leave the parts of a finished folder.
        if not is_new and not self.parts.exists():
            return False
        with _locked(self.folder, self.watcher):
            is_new = not self.folder.exists()  # another process may have prepared it meanwhile
            try:
                if is_new:
                    tokenizer, n_tasks = self._encoded()
                    self.digests.check_unchanged()
                    with naming(self.folder):
                        self._join(tokenizer, n_tasks)
            except UserError:
                shutil.rmtree(self.parts, ignore_errors=True)
                raise
            shutil.rmtree(self.parts, ignore_errors=True)
        return is_new

    def _encoded(self) -> tuple[Tokenizer, int]:
        while True:
            tokenizer = self._tokenizer()
            try:
                return tokenizer, self._encode(tokenizer)
            except SplitsChanged:
                shutil.rmtree(self.parts)

    def _tokenizer(self) -> Tokenizer:
        path = self.parts / "tokenizer.json"
        if path.is_file():
            kept = json.loads(path.read_bytes())
            if kept["version"] == __version__:
                self.documents.boundary = kept["boundary"]
                return from_dict(kept["tokenizer"])
            shutil.rmtree(self.parts)  # a different version may cut the text into different tasks

        tokenizer = build_from(self.build_tokenizer, self.documents)
        if self.corpus.template is not None:
            tokenizer = with_chat_template(tokenizer)
        self.digests.check_unchanged()  # the saved tokenizer must belong to this text
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
        n_tasks = 0
        n_found = 0
        n_read = 0  # bytes of text
        n_encoded = 0

        def encode_unless_done(task: Task, is_over: Event) -> bool:
            path = part_path(self.parts, task.number)
            if path.exists():
                return True
            encode_task(task, tokenizer, path, is_over, self.corpus)
            return False

        def counted() -> Iterator[Task]:
            nonlocal n_read
            for task in cut_tasks(self.documents.read()):
                n_read += task.n_bytes
                yield task

        for n_bytes, was_done in in_order(encode_unless_done, counted(), self.n_workers):
            n_tasks += 1
            n_found += was_done
            n_encoded += n_bytes
            share = self.corpus.share_read()
            if share is not None and n_read:
                share *= n_encoded / n_read  # some tasks were read, but not yet encoded
            self.watcher.on_progress(Progress(phase="tokenising", n_bytes=n_encoded, share=share))
        if n_found:
            self.watcher.on_note(
                f"resumed an interrupted preparation: {n_found} of {n_tasks} parts were already tokenised"
            )
        return n_tasks

    def _join(self, tokenizer: Tokenizer, n_tasks: int) -> None:
        joined = self.parts / "joined"
        shutil.rmtree(joined, ignore_errors=True)  # a process that was killed may leave this folder
        joined.mkdir()
        self.watcher.on_progress(Progress(phase="joining the parts", n_bytes=0, share=None))

        meta = self.contents | {
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

        skipped = self.corpus.skipped()
        if chats is not None:
            skipped += chats.refused.listed()
            for note in chats.notes(self.corpus.loss_on):
                self.watcher.on_note(note)
        if skipped:
            with (joined / "skipped.txt").open("wb") as file:
                file.write(skipped.encode("utf-8", errors="replace"))
                flush_file(file)
            self.watcher.on_note(f"skipped records are listed in {self.folder / 'skipped.txt'}")
        joined.rename(self.folder)
