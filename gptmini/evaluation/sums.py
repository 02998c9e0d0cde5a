"""Nats, tokens and bytes of each document, or of each block of a text: what a figure and its interval are made of."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from gptmini.evaluation.packed import LARGEST_EXPONENT, token_losses
from gptmini.evaluation.windows import ScoredBatch
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

    @property
    def perplexity(self) -> float:
        """exp(loss), or infinity where exp overflows."""
        return math.inf if self.loss > LARGEST_EXPONENT else math.exp(self.loss)


@torch.no_grad()
def scored_losses(model: GPT, batches: Iterable[ScoredBatch]) -> Iterator[np.ndarray]:
    """The losses of the targets that count, in nats, float64 (n,) for each batch, in their order.

    Args:
        model: a GPT; it is in the same mode afterwards.
        batches: on any device.
    """
    device = model.embedding.weight.device
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            losses, _ = token_losses(model, batch.tokens.to(device), batch.targets.to(device))
            yield losses.cpu()[batch.is_scored].double().numpy()
    finally:
        model.train(was_training)


def sums_of_parts(losses: Iterable[np.ndarray], parts: np.ndarray, n_bytes: np.ndarray) -> Sums:
    """Add up losses by the part of the text that each belongs to.

    Args:
        losses: in nats, in the order of the tokens.
        parts: number of the part of each token, int64 (n,), from 0 on.
        n_bytes: UTF-8 bytes of each token, int64 (n,).

    Parts without a scored token are left out.
    """
    n_parts = int(parts.max()) + 1 if len(parts) else 0
    nats = np.zeros(n_parts)
    n_done = 0
    for some in losses:
        np.add.at(nats, parts[n_done : n_done + len(some)], some)
        n_done += len(some)

    counted = parts[:n_done]
    n_tokens = np.bincount(counted, minlength=n_parts)
    bytes_of_parts = np.bincount(counted, weights=n_bytes[:n_done], minlength=n_parts)
    is_there = n_tokens > 0
    return Sums(
        nats=nats[is_there],
        n_tokens=n_tokens[is_there],
        n_bytes=bytes_of_parts[is_there].astype(np.int64),
    )
