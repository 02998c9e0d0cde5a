"""What is in a prepared folder: counts, the vocabulary that is used, and documents decoded back."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from gptmini.data.encoder import Encoder
from gptmini.data.overlap import WINDOW, Overlap, overlap_of
from gptmini.data.preparation import Progress
from gptmini.data.store import TokenStore

IDS_AT_ONCE = 2**22  # ids that are read or decoded at once
MOST_COMPARED = 2**21  # held-out ids that are compared with the training text, about
SHOWN = 3  # documents that are shown from the beginning of a split, and longest documents that are named


class Longest(NamedTuple):
    """One of the longest documents of a split."""

    n_tokens: int  # end-of-text apart
    beginning: str


@dataclass(frozen=True, kw_only=True)
class SplitInspection:
    """What is in a split."""

    n_documents: int
    n_tokens: int
    n_bytes: int
    n_ids_used: int  # different ids
    longest: list[Longest]  # the longest first
    first: list[str]  # beginnings of the first documents


def inspect_split(store: TokenStore, split: str, encoder: Encoder, n_shown: int) -> SplitInspection:
    """Look through a split; of documents that are shown, n_shown ids are decoded."""
    used = np.zeros(encoder.n_vocab, dtype=bool)
    ids = store.tokens(split)
    for first in range(0, len(ids), IDS_AT_ONCE):
        used[ids[first : first + IDS_AT_ONCE]] = True

    longest: list[tuple[int, int, str]] = []
    beginnings = []
    for number, document in enumerate(documents_of(store, split, encoder)):
        is_among_first = number < SHOWN
        is_among_longest = len(longest) < SHOWN or len(document) > longest[-1][0]
        if not is_among_first and not is_among_longest:
            continue
        beginning = encoder.decode(document[:n_shown].tolist())
        if is_among_first:
            beginnings.append(beginning)
        if is_among_longest:
            longest.append((len(document), -number, beginning))
            longest = sorted(longest, reverse=True)[:SHOWN]

    return SplitInspection(
        n_documents=store.n_documents(split),
        n_tokens=store.n_tokens(split),
        n_bytes=store.n_bytes(split),
        n_ids_used=int(used.sum()),
        longest=[Longest(n_tokens, beginning) for n_tokens, _, beginning in longest],
        first=beginnings,
    )


def inspect_overlap(
    store: TokenStore, encoder: Encoder, on_progress: Callable[[Progress], None]
) -> Overlap:
    """Compare held-out documents with the training text."""
    n_read = 0
    n_all = store.n_bytes("train")

    def count(text: str) -> None:
        nonlocal n_read
        n_read += len(text.encode(errors="replace"))
        on_progress(Progress(phase="comparing", n_bytes=n_read, share=min(1.0, n_read / n_all)))

    # Of much held-out text every so many-th document is compared, because all of their windows are held in memory.
    every = -(-store.n_tokens("val") // MOST_COMPARED)
    chosen = islice(documents_of(store, "val", encoder), 0, None, every)
    held_out = (encoder.decode(document[:MOST_COMPARED].tolist()) for document in chosen)
    train = (
        text
        for document in documents_of(store, "train", encoder)
        for text in _texts(document, encoder)
    )
    return overlap_of(held_out, train, count)


def documents_of(store: TokenStore, split: str, encoder: Encoder) -> Iterator[np.ndarray]:
    """The ids of each document of a split, (n,), without end-of-text.

    Where the folder has no index, documents are told apart by end-of-text; empty ones are then left out.
    """
    ids = store.tokens(split)
    if store.has_index:
        start = 0
        n_end = 0 if encoder.end_of_text is None else 1
        for end in store.document_ends(split):
            yield ids[start : int(end) - n_end]
            start = int(end)
        return

    parts: list[np.ndarray] = []
    for first in range(0, len(ids), IDS_AT_ONCE):
        some = ids[first : first + IDS_AT_ONCE]
        start = 0
        ends = [] if encoder.end_of_text is None else np.flatnonzero(some == encoder.end_of_text)
        for end in ends:
            parts.append(some[start:end])
            document = np.concatenate(parts)
            if len(document):
                yield document
            parts = []
            start = int(end) + 1
        parts.append(some[start:])
    document = np.concatenate(parts)
    if len(document):
        yield document


def _texts(document: np.ndarray, encoder: Encoder) -> Iterator[str]:
    """The text of a document, a long one in parts that overlap so far that each window lies in one of them."""
    behind = ""
    for first in range(0, len(document), IDS_AT_ONCE):
        text = behind + encoder.decode(document[first : first + IDS_AT_ONCE].tolist())
        yield text
        behind = text[-(WINDOW - 1) :]
