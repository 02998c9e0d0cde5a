"""Windows over ids for each convention of evaluation, and batches of windows of several lengths."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Window(NamedTuple):
    """Ids of which a model is given all but the last, and the last n_scored of which count."""

    ids: np.ndarray  # (n,), at least 2
    n_scored: int  # from 1 to n - 1


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
        yield Window(given[start:end], n_scored)
        n_done += n_scored


def strided_windows(ids: np.ndarray, *, stride: int, context_length: int) -> Iterator[Window]:
    """Overlapping windows of context_length ids, which begin stride ids apart; each id but the first is scored once.

    Source: the guide on perplexity in the documentation of Hugging Face's transformers.

    Args:
        ids: of a whole text, (n,).
        stride: from 1 to context_length - 1. Of each window but the first, so many ids at most are scored.
        context_length: ids of a window.
    """
    n_done = 1  # the first id is not predicted
    for start in range(0, len(ids), stride):
        end = min(start + context_length, len(ids))
        if end > n_done:
            yield Window(ids[start:end], end - n_done)
            n_done = end
        if end == len(ids):
            return


def scored_batches(windows: Iterable[Window], batch_size: int) -> Iterator[ScoredBatch]:
    """Batches of at most batch_size windows, in their order."""
    rest = iter(windows)
    while group := list(islice(rest, batch_size)):
        longest = max(len(window.ids) for window in group)
        ids = np.zeros((len(group), longest), dtype=np.int64)
        is_scored = np.zeros((len(group), longest - 1), dtype=bool)
        for row, window in enumerate(group):
            n = len(window.ids)
            ids[row, :n] = window.ids
            is_scored[row, n - 1 - window.n_scored : n - 1] = True

        tokens = torch.from_numpy(ids)  # (B, T + 1)
        yield ScoredBatch(tokens[:, :-1], tokens[:, 1:], torch.from_numpy(is_scored))
