"""Windows over held-out text: all documents in a row, or each document alone. Each token is scored once, in order."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gptmini.data import NOT_COUNTED, Excerpt, validation_windows

# To compute a confidence interval, a single document is divided into blocks of this size. A block has a few sentences,
# so neighbouring blocks are nearly independent.
BLOCK_BYTES = 512


class Passage(NamedTuple):
    """A text to score token by token, in order, and the division of this text into parts."""

    convention: str  # description of the scoring convention
    batches: Iterator[tuple[Tensor, Tensor]]  # tokens and targets, int64 (B, T) each
    n_tokens: int  # number of scored tokens
    # Number of scored tokens up to the end of each part, int64 (n_parts,). None if the text is a single document, or
    # if the ends of documents are unknown.
    ends: np.ndarray | None


def passage_of_documents(
    documents: Sequence[np.ndarray],
    *,
    first: int,
    first_text: str,
    context_length: int,
    batch_size: int,
) -> Passage:
    """Score each document (ids without special tokens, (n,)) alone after the id `first`, which is not scored.

    first_text is the text of this id, for the description of the convention.
    """
    windows = (
        window
        for ids in documents
        for window in rolling_windows(ids, first=first, context_length=context_length)
    )
    lengths = [len(ids) for ids in documents]
    return Passage(
        convention=f"each document alone after {first_text}, in windows of {context_length} tokens",
        batches=in_batches(windows, batch_size),
        n_tokens=sum(lengths),
        ends=np.cumsum(lengths) if len(documents) > 1 else None,
    )


def passage_of_excerpt(excerpt: Excerpt, *, context_length: int, batch_size: int) -> Passage:
    """Score all documents in a row, with their end-of-text tokens, in the windows and batches of validation.

    Every id except the first id is scored. Windows of context_length ids do not overlap.
    """
    n_tokens = min(excerpt.n_tokens, len(excerpt.ids) - 1)
    batches = validation_windows(
        excerpt.ids,
        context_length=context_length,
        batch_size=batch_size,
        max_tokens=n_tokens,
    )

    ends = excerpt.document_ends
    if ends is not None:
        ends = ends.astype(np.int64) - 1  # the first id is not scored
    is_single_document = ends is None or bool(ends[0] >= n_tokens)
    if excerpt.ids.dtype.kind == "i":  # signed ids: negative ids are not scored
        is_scored = excerpt.ids[1 : n_tokens + 1] >= 0  # (n_tokens,)
        n_before = np.cumsum(np.append(0, is_scored))  # (n_tokens + 1,)
        n_tokens = int(n_before[-1])
        ends = None if ends is None else n_before[np.minimum(ends, len(is_scored))]
    return Passage(
        convention=f"one stream, in windows of {context_length} tokens that do not overlap",
        batches=batches,
        n_tokens=n_tokens,
        ends=None if is_single_document else ends,
    )


def rolling_windows(
    ids: np.ndarray, *, first: int, context_length: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield windows of one document that score each id once: tokens and targets, int64 (n,) each.

    The model predicts the first id from the id `first`. Targets that are not scored are NOT_COUNTED.

    Windows do not overlap, except that the last window is extended to the left for full context.
    Source: lm-evaluation-harness, get_rolling_token_windows and make_disjoint_window in lm_eval/utils.py.
    ids has the shape (n,). The other arguments are described in passage_of_documents.
    """
    given = torch.from_numpy(np.concatenate([[first], ids]).astype(np.int64))  # (n + 1,)
    for n_done in range(0, len(ids), context_length):
        n_scored = min(context_length, len(ids) - n_done)
        end = n_done + n_scored + 1  # index in given, after the last scored id
        start = max(0, end - context_length - 1)
        targets = given[start + 1 : end].clone()
        targets[:-n_scored] = NOT_COUNTED
        yield given[start : end - 1], targets


def in_batches(
    windows: Iterable[tuple[Tensor, Tensor]], size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield tokens and targets of at most `size` windows, int64 (B, T) each. Shorter windows are padded at the end."""
    rest = iter(windows)
    while group := list(islice(rest, size)):
        tokens = pad_sequence([tokens for tokens, _ in group], batch_first=True)  # (B, T)
        targets = [targets for _, targets in group]
        yield tokens, pad_sequence(targets, batch_first=True, padding_value=NOT_COUNTED)
