"""The two conventions of evaluation: documents in one stream, as in training, and each document alone."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from gptmini.evaluation.windows import Window, rolling_windows, strided_windows

# A text that is one document is divided into blocks for its interval: some sentences, so that neighbours are nearly
# independent.
BLOCK_BYTES = 512


class Plan(NamedTuple):
    """What is scored of a text, and to which part of it each token belongs."""

    convention: str  # in words
    windows: Iterator[Window]
    parts: (
        np.ndarray
    )  # number of the part of each scored token, int64 (n,), in the order of the windows
    n_bytes: np.ndarray  # UTF-8 bytes of each scored token, int64 (n,)
    unit: str  # what a part is, in the plural


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
    windows = (
        rolling_windows(ids, first=end_of_text, context_length=context_length) for ids in documents
    )
    lengths = [len(ids) for ids in documents]
    parts = np.repeat(np.arange(len(documents)), lengths)
    n_bytes = byte_lengths[np.concatenate(documents)]
    convention = f"each document alone behind end-of-text, in windows of {context_length} tokens"
    return _plan(convention, chain.from_iterable(windows), parts, n_bytes)


def one_stream(
    ids: np.ndarray,
    document_ends: np.ndarray | None,
    *,
    stride: int | None,
    context_length: int,
    byte_lengths: np.ndarray,
) -> Plan:
    """All documents in one stream, ends of text included, in windows; every id but the first is scored.

    Args:
        ids: of the stream, (n,), at least 2.
        document_ends: where each document ends, in ids and behind its end-of-text, (n_documents,); None if that is not
            known.
        stride: ids from the beginning of a window to that of the next; None for windows that do not overlap.
        context_length: most ids that the model is given.
        byte_lengths: UTF-8 bytes of each id of the vocabulary.
    """
    if stride is None:
        windows = _side_by_side(ids, context_length)
        convention = f"one stream, in windows of {context_length} tokens that do not overlap"
    else:
        windows = strided_windows(ids, stride=stride, context_length=context_length)
        convention = f"one stream, in windows of {context_length} tokens, {stride} apart"

    parts = np.zeros(len(ids) - 1, dtype=np.int64)
    if document_ends is not None:
        parts = np.searchsorted(document_ends, np.arange(1, len(ids)), side="right")
    return _plan(convention, windows, parts, byte_lengths[ids[1:]])


def joined(plans: Iterable[Plan]) -> Plan:
    """One plan of several texts, one after the other."""
    plans = list(plans)
    parts = []
    n_parts = 0
    for plan in plans:
        parts.append(plan.parts + n_parts)
        n_parts += int(plan.parts.max(initial=-1)) + 1
    return Plan(
        convention=plans[0].convention,
        windows=chain.from_iterable(plan.windows for plan in plans),
        parts=np.concatenate(parts),
        n_bytes=np.concatenate([plan.n_bytes for plan in plans]),
        unit=plans[0].unit,
    )


def _plan(
    convention: str, windows: Iterator[Window], parts: np.ndarray, n_bytes: np.ndarray
) -> Plan:
    """A plan whose parts are documents, or blocks where all tokens are of one document."""
    if len(parts) and parts[0] != parts[-1]:
        return Plan(convention, windows, parts, n_bytes, "documents")
    begins = np.cumsum(n_bytes) - n_bytes
    blocks = begins // BLOCK_BYTES
    return Plan(convention, windows, blocks, n_bytes, f"blocks of {BLOCK_BYTES} bytes")


def _side_by_side(ids: np.ndarray, context_length: int) -> Iterator[Window]:
    """Windows of context_length ids, each with the id that follows; all of them but the first are scored."""
    for start in range(0, len(ids) - 1, context_length):
        window = ids[start : start + context_length + 1]
        yield Window(window, len(window) - 1)
