"""The two conventions of evaluation: documents in one stream, as in training, and each document alone."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gptmini.data.store import Ids
from gptmini.evaluation.windows import (
    Window,
    rolling_windows,
    side_by_side_windows,
    strided_windows,
)

# A text that is one document is divided into blocks for its interval: some sentences, so that neighbours are nearly
# independent.
BLOCK_BYTES = 512
DOCUMENTS = "documents"
BLOCKS = f"blocks of {BLOCK_BYTES} bytes"


class ScoredWindow(NamedTuple):
    """A window, and what each of its scored ids belongs to."""

    window: Window
    parts: np.ndarray  # number of the part of the text, int64 (n_scored,)
    n_bytes: np.ndarray  # UTF-8 bytes, int64 (n_scored,)


class Plan(NamedTuple):
    """What is scored of a text, and to which part of it each token belongs."""

    convention: str  # in words
    unit: str  # what a part is, in the plural
    n_tokens: int  # that are scored
    windows: Iterator[ScoredWindow]


def each_document_alone(
    documents: Sequence[np.ndarray],
    *,
    end_of_text: int,
    context_length: int,
    byte_lengths: np.ndarray,
) -> Plan:
    """Each document behind an end-of-text, which is not scored, in windows that do not overlap, but for the last.

    Source: lm-evaluation-harness, loglikelihood_rolling; see rolling_windows.

    Args:
        documents: ids of each, (n,), without an end-of-text.
        end_of_text: id that stands before each document.
        context_length: most ids that the model is given.
        byte_lengths: UTF-8 bytes of each id of the vocabulary.
    """

    def windows() -> Iterator[ScoredWindow]:
        for number, ids in enumerate(documents):
            for window in rolling_windows(ids, first=end_of_text, context_length=context_length):
                parts = np.full(window.n_scored, number)
                yield ScoredWindow(window, parts, _bytes_of(window, byte_lengths))

    is_one = len(documents) == 1
    return Plan(
        convention=f"each document alone behind end-of-text, in windows of {context_length} tokens",
        unit=BLOCKS if is_one else DOCUMENTS,
        n_tokens=sum(len(ids) for ids in documents),
        windows=_in_blocks(windows()) if is_one else windows(),
    )


def one_stream(
    ids: Ids,
    n_ids: int,
    document_ends: np.ndarray | None,
    *,
    stride: int | None,
    context_length: int,
    byte_lengths: np.ndarray,
) -> Plan:
    """All documents in one stream, ends of text included, in windows; every id but the first is scored.

    Args:
        ids: of the stream.
        n_ids: how many of them are read, at least 2.
        document_ends: where each document ends, in ids and behind its end-of-text, (n_documents,); None if that is not
            known.
        stride: ids from the beginning of a window to that of the next; None for windows that do not overlap.
        context_length: most ids that the model is given.
        byte_lengths: UTF-8 bytes of each id of the vocabulary.
    """
    if stride is None:
        cut = side_by_side_windows(ids, n_ids, context_length=context_length)
        convention = f"one stream, in windows of {context_length} tokens that do not overlap"
    else:
        cut = strided_windows(ids, n_ids, stride=stride, context_length=context_length)
        convention = f"one stream, in windows of {context_length} tokens, {stride} apart"

    # A prepared folder has uint64, which numpy would turn into floating-point numbers for every window.
    ends = None if document_ends is None else document_ends.astype(np.int64)

    def windows() -> Iterator[ScoredWindow]:
        for window in cut:
            parts = np.zeros(window.n_scored, dtype=np.int64)
            if ends is not None:
                places = np.arange(window.end - window.n_scored, window.end)
                parts = np.searchsorted(ends, places, side="right")
            yield ScoredWindow(window, parts, _bytes_of(window, byte_lengths))

    is_one = ends is None or bool(ends[0] >= n_ids)
    return Plan(
        convention=convention,
        unit=BLOCKS if is_one else DOCUMENTS,
        n_tokens=n_ids - 1,
        windows=_in_blocks(windows()) if is_one else windows(),
    )


def joined(plans: Sequence[Plan]) -> Plan:
    """One plan of several texts of one convention, one after the other."""

    def windows() -> Iterator[ScoredWindow]:
        n_before = 0
        for plan in plans:
            last = -1
            for scored in plan.windows:
                last = int(scored.parts[-1])
                yield scored._replace(parts=scored.parts + n_before)
            n_before += last + 1

    units = dict.fromkeys(plan.unit for plan in plans)
    return Plan(
        convention=plans[0].convention,
        unit=" and ".join(units),
        n_tokens=sum(plan.n_tokens for plan in plans),
        windows=windows(),
    )


def _in_blocks(windows: Iterable[ScoredWindow]) -> Iterator[ScoredWindow]:
    """Windows whose scored ids belong to blocks of BLOCK_BYTES, by the byte with which each id begins."""
    n_before = 0
    for scored in windows:
        begins = n_before + np.cumsum(scored.n_bytes) - scored.n_bytes
        yield scored._replace(parts=begins // BLOCK_BYTES)
        n_before += int(scored.n_bytes.sum())


def _bytes_of(window: Window, byte_lengths: np.ndarray) -> np.ndarray:
    """UTF-8 bytes of each scored id of a window, int64 (n_scored,)."""
    return byte_lengths[window.ids[len(window.ids) - window.n_scored :]]
