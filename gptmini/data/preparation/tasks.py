"""A corpus cut into tasks: about 16 MB of text each, or 131,072 short documents, encoded by itself.

Tasks are cut by content, never by worker. So a corpus has the same tasks wherever and by however many workers it is
prepared, and one that was interrupted goes on with the first task that is missing.
"""

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import NamedTuple, TypeVar

import numpy as np

from gptmini.data.corpus import Document, check_document
from gptmini.data.preparation.splits import hash_byte
from gptmini.user_error import UserError

# Bytes of text in a task. A kill costs the running tasks, each a few seconds; a task is held in memory whole.
TASK = 2**24
# Parts of documents in a task; Python needs a few hundred bytes for each of them while the task is in memory.
MOST_PARTS = 2**17
SPLIT_CODES = {None: 0, "train": 1, "val": 2}

# What is kept of each part of a document.
ROW = np.dtype(
    [
        ("n_bytes", "<u4"),  # UTF-8 bytes of the text
        ("n_characters", "<u4"),
        ("n_ids", "<u4"),  # end-of-text included
        # Of the document's first part, which decides the split of the document.
        ("hash_byte", "u1"),
        ("ends", "u1"),  # 1 if the document ends with this part
        ("split", "u1"),  # of SPLIT_CODES
    ]
)

Result = TypeVar("Result")


class Task(NamedTuple):
    """Some of a corpus's text, in its order."""

    number: int  # from 0
    texts: list[bytes]  # of parts of documents, UTF-8
    rows: np.ndarray  # (n,) of ROW, one a text; n_ids is 0 until the task is encoded

    @property
    def n_bytes(self) -> int:
        """UTF-8 bytes of text."""
        return int(self.rows["n_bytes"].sum())

    def checksum(self) -> int:
        """CRC-32 of the texts and of how they make up documents."""
        checksum = zlib.crc32(self.rows.tobytes())
        for text in self.texts:
            checksum = zlib.crc32(text, checksum)
        return checksum


def cut_tasks(documents: Iterable[Document]) -> Iterator[Task]:
    """Cut documents into tasks; UserError for a text that is not Unicode, or a last document that does not end."""
    number = 0
    texts: list[bytes] = []
    rows: list[tuple[int, ...]] = []
    n_bytes = 0
    begins = True  # whether the next part begins a document
    hash_of_document = 0

    for document in documents:
        check_document(document)
        text = _utf8(document.text)
        if begins:
            hash_of_document = hash_byte(text)
        begins = document.ends

        texts.append(text)
        rows.append(
            (
                len(text),
                len(document.text),
                0,
                hash_of_document,
                document.ends,
                SPLIT_CODES[document.split],
            )
        )
        n_bytes += len(text)
        if n_bytes >= TASK or len(rows) >= MOST_PARTS:
            yield Task(number, texts, np.array(rows, dtype=ROW))
            number += 1
            texts = []
            rows = []
            n_bytes = 0
    if not begins:
        raise UserError("the last part of a corpus must end its document, and it does not")
    if texts:
        yield Task(number, texts, np.array(rows, dtype=ROW))


def in_order(
    work: Callable[[Task, Event], Result], tasks: Iterable[Task], n_workers: int
) -> Iterator[Result]:
    """Do the work of tasks in threads, and yield the results in the order of the tasks.

    Args:
        work: gives the result of a task. It is also given an event: once that is set, the result is no longer wanted.
        tasks: the tasks, of which at most two a worker are in memory.
        n_workers: threads. Threads are enough, because the encoders spend their time outside Python.

    Of several errors, that of the first task in order is raised, whichever happens earlier; an error of reading the
    text belongs behind the tasks that were read before.
    """
    running: deque[Future[Result]] = deque()
    is_over = Event()
    unreadable: list[UserError] = []

    def readable() -> Iterator[Task]:
        """The tasks up to where the text cannot be read on; the error is raised once these tasks are done."""
        try:
            yield from tasks
        except UserError as error:
            unreadable.append(error)

    with ThreadPoolExecutor(n_workers) as threads:
        try:
            for task in readable():
                running.append(threads.submit(work, task, is_over))
                if len(running) >= 2 * n_workers:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
            if unreadable:
                raise unreadable[0]
        finally:
            is_over.set()
            threads.shutdown(wait=False, cancel_futures=True)


def _utf8(text: str) -> bytes:
    """A text in UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"text must be Unicode without lone surrogates, got U+{ord(text[error.start]):04X} "
            f"at position {error.start}; was the input not UTF-8?"
        ) from None
