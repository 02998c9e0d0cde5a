"""Windows over held-out text: the conventions by which each token is predicted once, in order."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gptmini.data.batches import NOT_COUNTED, validation_windows
from gptmini.data.ids import Ids, without_marks
from gptmini.data.store import Excerpt
from gptmini.user_error import UserError

NOT_SCORED = NOT_COUNTED  # target in a place that is not scored
# A text that is one document is divided into blocks for its interval: some sentences, so that neighbours are nearly
# independent.
BLOCK_BYTES = 512


class Window(NamedTuple):
    """Ids of which a model is given all but the last, and the last n_scored of which are scored."""

    ids: np.ndarray  # (n,), at least 2
    n_scored: int  # from 1 to n - 1


class Passage(NamedTuple):
    """Text that is scored token by token in its order, and the parts that it consists of."""

    convention: str  # in words
    batches: Iterator[tuple[Tensor, Tensor]]  # tokens and targets, int64 (B, T) each
    n_tokens: int  # that are scored
    # Where each part ends, in scored tokens from the first one on, int64 (n_parts,); None for a text that is one
    # document, or of which it is not known where documents end.
    ends: np.ndarray | None

    @property
    def unit(self) -> str:
        """What a part is, in the plural."""
        return "documents" if self.ends is not None else f"blocks of {BLOCK_BYTES} bytes"


def documents_alone(
    documents: Sequence[np.ndarray],
    *,
    first: int,
    first_named: str,
    context_length: int,
    batch_size: int,
) -> Passage:
    """Each document behind an id that is not scored itself.

    Args:
        documents: ids of each, (n,), without those that stand around a text.
        first: id that stands before each document.
        first_named: the token of that id, for the convention.
        context_length: most ids that the model is given.
        batch_size: most windows of a batch.
    """

    def windows() -> Iterator[Window]:
        for ids in documents:
            yield from rolling_windows(ids, first=first, context_length=context_length)

    lengths = [len(ids) for ids in documents]
    return Passage(
        convention=f"each document alone behind {first_named}, in windows of {context_length} tokens",
        batches=in_batches(windows(), batch_size),
        n_tokens=sum(lengths),
        ends=np.cumsum(lengths) if len(documents) > 1 else None,
    )


def stream(
    excerpt: Excerpt, *, stride: int | None, context_length: int, batch_size: int
) -> Passage:
    """Documents one behind the other, ends of text included; every id but the first is scored.

    Args:
        excerpt: what is read of a text.
        stride: ids from the beginning of a window to that of the next; None, or context_length, for the windows and
            the batches of a validation, which do not overlap.
        context_length: most ids that the model is given.
        batch_size: most windows of a batch.

    Raises UserError: a stride that is longer than a window.
    """
    n_tokens = min(excerpt.n_tokens, len(excerpt.ids) - 1)
    convention = f"one stream, in windows of {context_length} tokens"
    if stride is None or stride == context_length:
        convention += " that do not overlap"
        batches = validation_windows(
            excerpt.ids,
            context_length=context_length,
            batch_size=batch_size,
            max_tokens=n_tokens,
        )
    elif stride > context_length:
        raise UserError(f"--stride must be at most the context of {context_length}, got {stride}")
    else:
        convention += f", {stride} apart"
        windows = strided_windows(
            excerpt.ids, n_tokens + 1, stride=stride, context_length=context_length
        )
        batches = in_batches(windows, batch_size)

    ends = excerpt.document_ends
    if ends is not None:
        ends = ends.astype(np.int64) - 1  # the first id is not scored
    is_one = ends is None or bool(ends[0] >= n_tokens)
    if excerpt.ids.dtype.kind == "i":  # some are not scored
        is_scored = excerpt.ids[1 : n_tokens + 1] >= 0  # (n_tokens,)
        n_before = np.cumsum(np.append(0, is_scored))  # (n_tokens + 1,)
        n_tokens = int(n_before[-1])
        ends = None if ends is None else n_before[np.minimum(ends, len(is_scored))]
    return Passage(
        convention=convention,
        batches=batches,
        n_tokens=n_tokens,
        ends=None if is_one else ends,
    )


def rolling_windows(ids: np.ndarray, *, first: int, context_length: int) -> Iterator[Window]:
    """Windows of one document, each of whose ids is scored once; the first id is predicted from the id `first`.

    Windows do not overlap, but for the last, which keeps as much context as fits. Where the document is shorter than a
    window, there is only one.
    Source: lm-evaluation-harness, get_rolling_token_windows and make_disjoint_window in lm_eval/utils.py.
    The document's ids are (n,); the other arguments are those of documents_alone.
    """
    given = np.concatenate([[first], ids])  # (n + 1,)
    for n_done in range(0, len(ids), context_length):
        n_scored = min(context_length, len(ids) - n_done)
        end = n_done + n_scored + 1  # in given, behind the last scored id
        start = max(0, end - context_length - 1)
        yield Window(given[start:end], n_scored)


def strided_windows(ids: Ids, n_ids: int, *, stride: int, context_length: int) -> Iterator[Window]:
    """Overlapping windows of context_length ids, which begin stride ids apart; each id but the first is scored once.

    Source: the guide on perplexity in the documentation of Hugging Face's transformers.

    Args:
        ids: of a stream.
        n_ids: how many of them are read.
        stride: from 1 to context_length - 1. Of each window but the first, so many ids at most are scored.
    """
    n_done = 1  # the first id is not predicted
    for start in range(0, n_ids, stride):
        end = min(start + context_length, n_ids)
        if end > n_done:
            yield Window(np.asarray(ids[start:end]), end - n_done)
            n_done = end
        if end == n_ids:
            return


def in_batches(windows: Iterable[Window], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of at most `size` windows in their order, the shorter ones filled up behind their end.

    Yields tokens and targets, int64 (B, T) each; targets are NOT_SCORED where they do not count.
    """
    rest = iter(windows)
    while group := list(islice(rest, size)):
        longest = max(len(window.ids) for window in group) - 1
        tokens = np.zeros((len(group), longest), dtype=np.int64)
        targets = np.full((len(group), longest), NOT_SCORED, dtype=np.int64)

        for row, window in enumerate(group):
            n = len(window.ids) - 1
            tokens[row, :n] = without_marks(window.ids[:-1])
            scored = window.ids[-window.n_scored :]
            targets[row, n - window.n_scored : n] = np.where(scored < 0, NOT_SCORED, scored)
        yield torch.from_numpy(tokens), torch.from_numpy(targets)  # (B, T) each
