"""Cut text into the tasks of a preparation, and encode the tasks in threads."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import numpy as np

from gptmini.data.corpus import Corpus
from gptmini.data.prepared.chat_tokens import ChatReport, encode_chats
from gptmini.data.prepared.meta import SPLITS
from gptmini.data.prepared.splits import n_bytes_of
from gptmini.system.files import replacing
from gptmini.tokenizer import Document, Tokenizer, document_prefix

# Bytes of text in a task. Small tasks fit into memory, and a killed process loses little work.
TASK = 2**22
# Parts of documents in a task. Python needs a few hundred bytes of memory for each part.
MOST_PARTS = 2**17


class Task(NamedTuple):
    """Consecutive text of a corpus, which one thread encodes."""

    number: int  # from 0
    documents: list[Document]  # documents and parts of documents, each with its split
    n_bytes: int  # UTF-8 bytes of text
    begins: bool  # whether the first part is the start of its document


def cut_tasks(documents: Iterable[Document]) -> Iterator[Task]:
    """Group consecutive documents into tasks of about TASK bytes. The last part of a corpus must end its document."""
    number = 0
    parts: list[Document] = []
    n_bytes = 0
    begins = True  # whether the first part is the start of its document
    ends = True  # whether the last part ends its document

    for part in documents:
        parts.append(part)
        n_bytes += n_bytes_of(part.text)
        ends = part.ends
        if n_bytes >= TASK or len(parts) >= MOST_PARTS:
            yield Task(number, parts, n_bytes, begins)
            number += 1
            parts = []
            n_bytes = 0
            begins = ends

    assert ends, "the last part of a corpus must end its document"
    if parts:
        yield Task(number, parts, n_bytes, begins)


def in_order(
    work: Callable[[Task, Event], tuple[int, bool]], tasks: Iterable[Task], n_workers: int
) -> Iterator[tuple[int, bool]]:
    """Run tasks in threads. Yield the results of `work` in the order of the tasks.

    `work` may stop early if its event is set. At most two tasks for each worker are in memory. Threads are as fast as
    processes, because tokenizers mostly run outside Python.
    """
    running: deque[Future[tuple[int, bool]]] = deque()
    is_over = Event()
    with ThreadPoolExecutor(n_workers) as threads:
        try:
            for task in tasks:
                running.append(threads.submit(work, task, is_over))
                if len(running) >= 2 * n_workers:
                    yield running.popleft().result()
            for future in running:
                yield future.result()
        finally:
            is_over.set()
            threads.shutdown(wait=False, cancel_futures=True)


@dataclass
class EncodedSplit:
    """The encoded documents of one split in one task."""

    ids: list[np.ndarray] = field(default_factory=list)  # (n,) each
    ends: list[int] = field(default_factory=list)  # number of ids up to the end of each document
    n_ids: int = 0
    n_bytes: int = 0

    def add(self, ids: np.ndarray) -> None:
        """Append ids."""
        self.ids.append(ids)
        self.n_ids += len(ids)


def encode_task(
    task: Task, tokenizer: Tokenizer, path: Path, is_over: Event, corpus: Corpus
) -> None:
    """Encode a task and write the ids to a file atomically. If is_over is set, stop early and do not write the file."""
    splits: dict[str | None, EncodedSplit] = {split: EncodedSplit() for split in SPLITS}
    before = np.array(document_prefix(tokenizer), dtype=np.uint32)
    end = np.array([tokenizer.end_of_text or 0], dtype=np.uint32)
    report = ChatReport()
    all_ids: Iterator[np.ndarray | None]
    if corpus.template is None:
        all_ids = tokenizer.encode_batch(document.text for document in task.documents)
    else:
        all_ids = encode_chats(task.documents, tokenizer, corpus, report)
        before = before[:0]  # a template adds its own ids
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
    empty = np.array([], dtype=np.uint32)
    for split, encoded in splits.items():
        ids = np.concatenate([empty, *encoded.ids])
        arrays[f"{split}_ids"] = ids.astype(dtype_of(tokenizer, corpus.loss_on))
        arrays[f"{split}_ends"] = np.array(encoded.ends, dtype=np.uint64)
        arrays[f"{split}_bytes"] = np.array(encoded.n_bytes)
    if corpus.template is not None:
        in_json = json.dumps(asdict(report)).encode()
        arrays["chats"] = np.frombuffer(in_json, dtype=np.uint8)
    with replacing(path) as file:
        np.savez(file, **arrays)


def dtype_of(tokenizer: Tokenizer, loss_on: str) -> np.dtype:
    """Return the dtype of the ids in a file. An id has 2 bytes if possible, and otherwise 4 bytes."""
    if loss_on == "answers":  # ids with marks are negative
        return np.dtype("<i4")
    return np.dtype("<u2" if tokenizer.n_vocab <= 2**16 else "<u4")
