"""Compute a model's loss on held-out text, summed over the text and over its parts."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gptmini.data import NOT_COUNTED
from gptmini.evaluation.windows import BLOCK_BYTES, Passage
from gptmini.model import GPT, in_eval_mode, next_token_loss, split_rows
from gptmini.system.errors import UserError


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation."""

    loss: float  # nats per token
    n_tokens: int  # number of predicted tokens
    bits_per_byte: float  # loss in bits per token, multiplied by the number of tokens per UTF-8 byte of the text


@dataclass
class Tally:
    """The sums of the losses of a text over its batches. Each token has the same weight.

    The sums stay on the device until evaluation is called, because reading them would wait for the GPU.
    """

    nats: Tensor | float = 0.0
    n_tokens: Tensor | int = 0

    def add(self, losses: Tensor, n_tokens: Tensor | int) -> None:
        """Add losses in nats, of any shape. n_tokens of the losses are scored. All other losses must be zero.

        The sums are in float64. On Apple's GPUs, the sums are in float32, because these GPUs do not support float64.
        """
        dtype = torch.float32 if losses.device.type == "mps" else torch.float64
        self.nats = self.nats + losses.sum(dtype=dtype)
        self.n_tokens = self.n_tokens + n_tokens

    def evaluation(self, tokens_per_byte: float) -> Evaluation:
        """Return the result for all tokens so far. tokens_per_byte is the number of tokens per byte of the entire text.

        The first token of a split is never predicted, but tokens_per_byte counts this token. Therefore bits per byte
        include the mean loss for the first token. Raises UserError if no token was scored.
        """
        n_tokens = int(self.n_tokens)
        if not n_tokens:
            raise UserError("an evaluation must score at least one token, got none; give more text")
        loss = float(self.nats) / n_tokens
        return Evaluation(
            loss=loss,
            n_tokens=n_tokens,
            bits_per_byte=loss / math.log(2) * tokens_per_byte,
        )


class Sums(NamedTuple):
    """The sums over each part of a text. A part is a document or a block. Each array has the shape (n_parts,)."""

    nats: np.ndarray  # float64
    n_tokens: np.ndarray  # int64, scored tokens
    n_bytes: np.ndarray  # int64, UTF-8 bytes of the scored tokens


def exponential(value: float) -> float:
    """Return exp(value), or infinity if exp overflows."""
    return math.inf if value > 709 else math.exp(value)  # exp(710) overflows


@torch.no_grad()
def token_losses(model: GPT, tokens: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each target in nats, (B, T).

    Args:
        model: a GPT in eval mode.
        tokens: int64 (B, T), on the model's device.
        targets: int64 (B, T), tokens shifted by one. NOT_COUNTED targets have a loss of 0.
    """
    hidden = model.hidden(tokens)  # (B, T, C)

    # Work in pieces, because all logits of a large vocabulary together would take gigabytes.
    losses = []
    for rows, row_targets in split_rows(model, hidden, targets):  # (1, n, C), (n,)
        logits = model.unembed(rows)  # (1, n, V)
        losses.append(next_token_loss(logits, row_targets, reduction="none"))  # (n,)
    return torch.cat(losses).view_as(targets)  # (B, T)


def evaluate(
    model: GPT,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    tokens_per_byte: float,
) -> Evaluation:
    """Evaluate a model on batches. Each token has the same weight, and random numbers are not used.

    Args:
        model: a GPT in train or eval mode; the mode of the model is restored afterwards.
        batches: pairs of tokens and targets, int64 (B, T) of any sizes, on any device. Targets of -100 are not scored.
        tokens_per_byte: tokens per UTF-8 byte in the split of the batches.

    Raises UserError if no target is scored.
    """
    tally = Tally()
    with in_eval_mode(model):
        for tokens, targets in batches:
            _score_batch(model, tally, tokens, targets)
    return tally.evaluation(tokens_per_byte)


def score(
    model: GPT,
    passages: Iterable[Passage],
    *,
    byte_lengths: np.ndarray,
    on_batch: Callable[[int], None] = lambda n_tokens: None,
) -> tuple[Tally, Sums]:
    """Score the passages in order. Return the tally of all tokens and the sums over each part.

    Args:
        model: a GPT in train or eval mode; the mode of the model is restored afterwards.
        passages: the text. Parts without scored tokens are left out of the sums.
        byte_lengths: UTF-8 bytes of each id of the vocabulary, int64 (V,).
        on_batch: called after each batch with the number of tokens scored so far.
    """
    tally = Tally()
    sums = [np.zeros((3, 0))]  # nats, tokens and bytes of the parts of each passage, (3, n_parts)
    with in_eval_mode(model):
        for passage in passages:
            sums.append(_sums_of_parts(model, tally, passage, byte_lengths, on_batch))

    nats, n_tokens, n_bytes = np.concatenate(sums, axis=1)
    return tally, Sums(nats, n_tokens.astype(np.int64), n_bytes.astype(np.int64))


def _score_batch(model: GPT, tally: Tally, tokens: Tensor, targets: Tensor) -> Tensor:
    device = model.embedding.weight.device
    losses = token_losses(model, tokens.to(device), targets.to(device))  # (B, T)
    tally.add(losses, n_tokens=int((targets != NOT_COUNTED).sum()))
    return losses


def _sums_of_parts(
    model: GPT,
    tally: Tally,
    passage: Passage,
    byte_lengths: np.ndarray,
    on_batch: Callable[[int], None],
) -> np.ndarray:
    """Score a passage. Return the nats, tokens and bytes of each part that has scored tokens, (3, n_parts)."""
    n_tokens = 0  # tokens of the passage so far
    n_bytes = 0
    part_numbers = [np.zeros(0, dtype=np.int64)]  # numbers of the parts in each batch, (n,)
    sums = [np.zeros((3, 0))]  # sums over these parts, (3, n)

    for tokens, targets in passage.batches:
        losses = _score_batch(model, tally, tokens, targets)  # (B, T)
        is_scored = targets != NOT_COUNTED  # (B, T)
        nats = losses.cpu()[is_scored].double().numpy()  # (n,)
        lengths = byte_lengths[targets[is_scored].numpy()]  # (n,)

        # The number of the part that each token belongs to. A token belongs to the block in which the token starts.
        if passage.ends is None:
            parts = (n_bytes + np.cumsum(lengths) - lengths) // BLOCK_BYTES
        else:
            places = np.arange(n_tokens, n_tokens + len(nats))
            parts = np.searchsorted(passage.ends, places, side="right")
        n_tokens += len(nats)
        n_bytes += int(lengths.sum())

        # Sum after each batch, so that memory grows with the number of parts, not with the number of tokens.
        in_batch, sums_in_batch = _sum_by_part(parts, np.stack((nats, np.ones(len(nats)), lengths)))
        part_numbers.append(in_batch)
        sums.append(sums_in_batch)
        on_batch(int(tally.n_tokens))

    _, totals = _sum_by_part(np.concatenate(part_numbers), np.concatenate(sums, axis=1))
    return totals


def _sum_by_part(parts: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sum the values (3, n) of each part. The part numbers in parts, (n,), never decrease.

    Returns the distinct part numbers, (n_parts,), and the sums of these parts, (3, n_parts).
    """
    starts = np.flatnonzero(np.diff(parts, prepend=-1))
    return parts[starts], np.add.reduceat(values, starts, axis=1)
