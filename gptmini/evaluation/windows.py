"""Windows over ids for each convention of evaluation, and batches of windows of several lengths."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from gptmini.data.store import Ids

Item = TypeVar("Item")


class Window(NamedTuple):
    """Ids of which a model is given all but the last, and the last n_scored of which count."""

    ids: np.ndarray  # (n,), at least 2
    n_scored: int  # from 1 to n - 1
    end: int  # place of the last id in the document or stream, plus 1


class ScoredBatch(NamedTuple):
    """Windows side by side, the shorter ones filled up behind their end."""

    tokens: Tensor  # int64 (B, T)
    targets: Tensor  # int64 (B, T), tokens shifted by one
    is_scored: Tensor  # bool (B, T): which targets count


def rolling_windows(ids: np.ndarray, *, first: int, context_length: int) -> Iterator[Window]:
    """Windows of one document, each of whose ids is scored once; the first id is predicted from the id `first`.

    Windows do not overlap, but for the last, which keeps as much context as fits. Where the document is shorter than a
    window, there is only one.
    Source: lm-evaluation-harness, get_rolling_token_windows and make_disjoint_window in lm_eval/utils.py.

    Args:
        ids: of the document, (n,), without an end-of-text.
        first: id that stands before the document.
        context_length: most ids that the model is given.
    """
    given = np.concatenate([[first], ids])  # (n + 1,)
    n_done = 0
    while n_done < len(ids):
        n_scored = min(context_length, len(ids) - n_done)
        end = n_done + n_scored + 1  # in given, behind the last scored id
        start = max(0, end - context_length - 1)
        yield Window(given[start:end], n_scored, end - 1)
        n_done += n_scored


def strided_windows(ids: Ids, n_ids: int, *, stride: int, context_length: int) -> Iterator[Window]:
    """Overlapping windows of context_length ids, which begin stride ids apart; each id but the first is scored once.

    Source: the guide on perplexity in the documentation of Hugging Face's transformers.

    Args:
        ids: of a stream.
        n_ids: how many of them are read.
        stride: from 1 to context_length - 1. Of each window but the first, so many ids at most are scored.
        context_length: ids of a window.
    """
    n_done = 1  # the first id is not predicted
    for start in range(0, n_ids, stride):
        end = min(start + context_length, n_ids)
        if end > n_done:
            yield Window(np.asarray(ids[start:end]), end - n_done, end)
            n_done = end
        if end == n_ids:
            return


def side_by_side_windows(ids: Ids, n_ids: int, *, context_length: int) -> Iterator[Window]:
    """Windows of context_length ids, each with the id that follows; all ids but the first of each window are scored."""
    for start in range(0, n_ids - 1, context_length):
        end = min(start + context_length + 1, n_ids)
        yield Window(np.asarray(ids[start:end]), end - start - 1, end)


def scored_batch(windows: list[Window]) -> ScoredBatch:
    """Windows side by side, in their order."""
    longest = max(len(window.ids) for window in windows)
    ids = np.zeros((len(windows), longest), dtype=np.int64)
    is_scored = np.zeros((len(windows), longest - 1), dtype=bool)
    for row, window in enumerate(windows):
        n = len(window.ids)
        ids[row, :n] = window.ids
        is_scored[row, n - 1 - window.n_scored : n - 1] = True

    tokens = torch.from_numpy(ids)  # (B, T + 1)
    return ScoredBatch(tokens[:, :-1], tokens[:, 1:], torch.from_numpy(is_scored))


def in_batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of at most `size` items, in their order."""
    rest = iter(items)
    while group := list(islice(rest, size)):
        yield group
