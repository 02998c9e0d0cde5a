"""Nats, tokens and bytes of each document, or of each block of a text: what a figure and its interval are made of."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch

from gptmini.evaluation.conventions import ScoredWindow
from gptmini.evaluation.packed import token_losses
from gptmini.evaluation.windows import in_batches, scored_batch
from gptmini.model import GPT


class Sums(NamedTuple):
    """Sums over the parts of a text, (n,) each: its documents, or blocks of it."""

    nats: np.ndarray  # float64
    n_tokens: np.ndarray  # int64, of those that are predicted
    n_bytes: np.ndarray  # int64, UTF-8 bytes of their text

    @property
    def loss(self) -> float:
        """Nats per token of all parts together."""
        return float(self.nats.sum() / self.n_tokens.sum())

    @property
    def bits_per_byte(self) -> float:
        """Bits per UTF-8 byte of text of all parts together."""
        return float(self.nats.sum() / math.log(2) / self.n_bytes.sum())


def sums_of_parts(
    model: GPT,
    windows: Iterable[ScoredWindow],
    *,
    batch_size: int,
    on_batch: Callable[[int], None] = lambda n_tokens: None,
) -> Sums:
    """Score windows, and add up what their tokens cost by the part of the text that each belongs to.

    Args:
        model: a GPT; it is in the same mode afterwards.
        windows: the text; parts without a scored token are left out.
        batch_size: windows at once.
        on_batch: is told after each batch how many tokens are scored so far.
    """
    was_training = model.training
    totals = np.zeros((3, 0))  # nats, tokens and bytes of each part
    n_done = 0
    model.eval()
    try:
        for group in in_batches(windows, batch_size):
            losses = _losses(model, group)
            parts = np.concatenate([scored.parts for scored in group])
            n_bytes = np.concatenate([scored.n_bytes for scored in group])

            n_more = int(parts.max()) + 1 - totals.shape[1]
            if n_more > 0:
                # At least twice as many, so that few parts are copied often.
                totals = np.pad(totals, ((0, 0), (0, max(n_more, totals.shape[1]))))
            for total, values in zip(totals, (losses, np.ones(len(parts)), n_bytes), strict=True):
                np.add.at(total, parts, values)
            n_done += len(parts)
            on_batch(n_done)
    finally:
        model.train(was_training)

    nats, n_tokens, bytes_of_parts = totals[:, totals[1] > 0]
    return Sums(nats, n_tokens.astype(np.int64), bytes_of_parts.astype(np.int64))


@torch.no_grad()
def _losses(model: GPT, group: list[ScoredWindow]) -> np.ndarray:
    """The losses of the scored ids of windows, in nats, float64 (n,), in their order."""
    batch = scored_batch([scored.window for scored in group])
    device = model.embedding.weight.device
    losses, _ = token_losses(model, batch.tokens.to(device), batch.targets.to(device))  # (B, T)
    return losses.cpu()[batch.is_scored].double().numpy()
