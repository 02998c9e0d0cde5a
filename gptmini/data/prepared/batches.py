"""Training batches and validation windows as tensors."""

from collections.abc import Iterator
from itertools import count
from typing import Annotated

import numpy as np
import torch
from pydantic import ConfigDict, Field, PositiveInt, SkipValidation, validate_call
from torch import Tensor

from gptmini.data.prepared.ids import NOT_COUNTED, Ids, cut_windows
from gptmini.data.prepared.order import starts_in_sources
from gptmini.data.prepared.store import TokenStore
from gptmini.settings import STRICT, Seed


@validate_call(config=ConfigDict(**STRICT, arbitrary_types_allowed=True))
def batches(
    store: SkipValidation[TokenStore],
    *,
    batch_size: PositiveInt,
    context_length: PositiveInt,
    seed: Seed,
    start_step: Annotated[int, Field(ge=0)] = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield training batches forever. A run with this seed and this global batch size has the same batches.

    Args:
        store: prepared tokens, or a mixture.
        batch_size: B, sequences per batch.
        context_length: T, tokens per sequence.
        seed: seed of the order of the windows.
        start_step: step of the first batch.

    Yields pairs of tokens and targets. The targets are shifted by one. Both tensors are int64 (B, T).
    Raises UserError if a source has fewer than 2 T training tokens, or if a token file has changed.
    """
    for step in count(start_step):
        first = step * batch_size
        starts = starts_in_sources(
            np.arange(first, first + batch_size, dtype=np.int64),
            store.sources,
            context_length=context_length,
            seed=seed,
        )
        yield split_windows(store.training_windows(starts, context_length))


def validation_windows(
    data: Ids, *, context_length: int, batch_size: int, max_tokens: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield non-overlapping windows of data, (n_tokens,), in order. Every token except the first is a target once.

    max_tokens limits the number of targets. With None, all targets are used. Yields tokens and targets, int64 (B, T).
    The last batch of full windows may have fewer windows. If some targets do not fill a window, they form a last batch
    with one shorter window.
    """
    n_targets = len(data) - 1
    if max_tokens is not None:
        n_targets = min(n_targets, max_tokens)

    n_whole, rest = divmod(n_targets, context_length)
    for first in range(0, n_whole, batch_size):
        last = min(first + batch_size, n_whole)
        yield gather(data, context_length * np.arange(first, last), context_length)
    if rest:
        yield gather(data, np.array([n_whole * context_length]), rest)


def gather(data: Ids, starts: np.ndarray, context_length: int) -> tuple[Tensor, Tensor]:
    """Cut windows from data (n_tokens,) at `starts` (B,). Return tokens and shifted targets, int64 (B, T) each."""
    return split_windows(cut_windows(data, starts, context_length))


def split_windows(windows: np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
    """Split windows of ids (B, T + 1) into tokens and targets shifted by one, int64 (B, T) each.

    An id below 0 stands for the token ~id. The target of this token is NOT_COUNTED.
    """
    windows = torch.as_tensor(windows).long()  # (B, T + 1)
    tokens = torch.maximum(windows, ~windows)  # (B, T + 1)
    targets = torch.where(windows < 0, NOT_COUNTED, windows)  # (B, T + 1)
    return tokens[:, :-1], targets[:, 1:]
