"""What a model's predictions of held-out text cost: the loss of each token, summed over a text and over its parts."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gptmini.evaluation.windows import BLOCK_BYTES, NOT_SCORED, Passage
from gptmini.model import GPT, next_token_loss
from gptmini.model.loss import row_pieces
from gptmini.user_error import UserError

LARGEST_EXPONENT = 709  # exp(709) is near the largest float64, and exp(710) overflows


@dataclass(frozen=True)
class Evaluation:
    """How well a model predicted a number of tokens."""

    loss: float  # nats per token
    n_tokens: int  # number of predicted tokens
    bits_per_byte: float  # loss in bits, times the tokens per UTF-8 byte of the text

    @property
    def perplexity(self) -> float:
        """exp(loss), or infinity where exp overflows."""
        return exponential(self.loss)


@dataclass
class Tally:
    """The losses of a text, added up batch by batch, so that each token weighs the same.

    The sum stays on the device until an evaluation is asked for, because reading it would keep a GPU waiting.
    """

    nats: Tensor | float = 0.0
    n_tokens: Tensor | int = 0

    def add(self, losses: Tensor, n_tokens: Tensor | int) -> None:
        """Add losses in nats, of any shape, of which n_tokens are scored and the others zero.

        They are summed in float64, or in float32 on Apple's GPUs, which have no float64.
        """
        dtype = torch.float32 if losses.device.type == "mps" else torch.float64
        self.nats = self.nats + losses.sum(dtype=dtype)
        self.n_tokens = self.n_tokens + n_tokens

    def evaluation(self, tokens_per_byte: float) -> Evaluation:
        """The figures of all tokens that were added, at least one; tokens_per_byte is that of the whole text.

        The first token of a split is never predicted. tokens_per_byte counts it, which charges it the mean loss.
        """
        n_tokens = int(self.n_tokens)
        if not n_tokens:
            raise UserError("an evaluation needs a token that counts, got none; give more text")
        loss = float(self.nats) / n_tokens
        return Evaluation(
            loss=loss,
            n_tokens=n_tokens,
            bits_per_byte=loss / math.log(2) * tokens_per_byte,
        )


class Sums(NamedTuple):
    """Sums over the parts of a text, (n_parts,) each: its documents, or blocks of it."""

    nats: np.ndarray  # float64
    n_tokens: np.ndarray  # int64, of those that are scored
    n_bytes: np.ndarray  # int64, UTF-8 bytes of their text


def exponential(value: float) -> float:
    """exp(value), or infinity where exp overflows."""
    return math.inf if value > LARGEST_EXPONENT else math.exp(value)


@torch.no_grad()
def token_losses(model: GPT, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the loss of each target, and the id that the model holds likeliest in the target's place.

    Args:
        model: a GPT in eval mode.
        tokens: int64 (B, T), on the model's device.
        targets: int64 (B, T), tokens shifted by one; the loss of a target that is NOT_SCORED is 0.

    Returns losses in nats, (B, T), and ids, int64 (B, T).
    """
    hidden = model.hidden(tokens)  # (B, T, C)

    # All logits of a large vocabulary at once would need gigabytes.
    losses = []
    likeliest = []
    for rows, row_targets in row_pieces(model, hidden, targets):  # (1, n, C), (n,)
        logits = model.unembed(rows)  # (1, n, V)
        losses.append(next_token_loss(logits, row_targets, reduction="none"))  # (n,)
        likeliest.append(logits.argmax(dim=-1).squeeze(0))  # (n,)
    return torch.cat(losses).view_as(targets), torch.cat(likeliest).view_as(targets)  # (B, T) each


def evaluate(
    model: GPT,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    tokens_per_byte: float,
) -> Evaluation:
    """Evaluate a model on batches; each token weighs the same, and no random number is drawn.

    Args:
        model: a GPT in either mode; it is in the same mode afterwards.
        batches: pairs of tokens and targets, int64 (B, T) of any sizes, on any device; a target of -100 is not scored.
        tokens_per_byte: tokens per UTF-8 byte of the split that the batches are from.

    Raises UserError: no target is scored.
    """
    tally = Tally()
    with _in_eval_mode(model):
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
    """Score passages one after the other: what they cost together, and each of their parts.

    Args:
        model: a GPT in either mode; it is in the same mode afterwards.
        passages: the text; parts without a scored token are left out.
        byte_lengths: UTF-8 bytes of each id of the vocabulary, int64 (V,).
        on_batch: is told after each batch how many tokens are scored so far.
    """
    tally = Tally()
    sums = [np.zeros((3, 0))]  # nats, tokens and bytes of the parts of each passage, (3, n_parts)
    with _in_eval_mode(model):
        for passage in passages:
            sums.append(_sums_of_parts(model, tally, passage, byte_lengths, on_batch))

    nats, n_tokens, n_bytes = np.concatenate(sums, axis=1)
    return tally, Sums(nats, n_tokens.astype(np.int64), n_bytes.astype(np.int64))


def _score_batch(model: GPT, tally: Tally, tokens: Tensor, targets: Tensor) -> Tensor:
    """Add a batch to a tally; return its losses, (B, T)."""
    device = model.embedding.weight.device
    losses, _ = token_losses(model, tokens.to(device), targets.to(device))  # (B, T)
    tally.add(losses, n_tokens=int((targets != NOT_SCORED).sum()))
    return losses


def _sums_of_parts(
    model: GPT,
    tally: Tally,
    passage: Passage,
    byte_lengths: np.ndarray,
    on_batch: Callable[[int], None],
) -> np.ndarray:
    """Score a passage, and add up nats, tokens and bytes of each part of it with a scored token, (3, n_parts)."""
    n_tokens = 0  # of the passage so far
    n_bytes = 0
    numbers = [np.zeros(0, dtype=np.int64)]  # of the parts in each batch, (n,)
    sums = [np.zeros((3, 0))]  # over those parts, (3, n)

    for tokens, targets in passage.batches:
        losses = _score_batch(model, tally, tokens, targets)  # (B, T)
        is_scored = targets != NOT_SCORED  # (B, T)
        nats = losses.cpu()[is_scored].double().numpy()  # (n,)
        lengths = byte_lengths[targets[is_scored].numpy()]  # (n,)

        # The number of the part that each token belongs to, or, of a block, in which it begins.
        if passage.ends is None:
            parts = (n_bytes + np.cumsum(lengths) - lengths) // BLOCK_BYTES
        else:
            places = np.arange(n_tokens, n_tokens + len(nats))
            parts = np.searchsorted(passage.ends, places, side="right")
        n_tokens += len(nats)
        n_bytes += int(lengths.sum())

        # Added up at once, so that memory grows with the parts and not with the tokens.
        in_batch, sums_in_batch = _added_up(parts, np.stack((nats, np.ones(len(nats)), lengths)))
        numbers.append(in_batch)
        sums.append(sums_in_batch)
        on_batch(int(tally.n_tokens))

    _, totals = _added_up(np.concatenate(numbers), np.concatenate(sums, axis=1))
    return totals


def _added_up(parts: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Add up values, (3, n), that belong to the same part; parts are numbers that rise, (n,).

    Returns each number once, (n_parts,), and the sums of its part, (3, n_parts).
    """
    begins = np.flatnonzero(np.diff(parts, prepend=-1))
    return parts[begins], np.add.reduceat(values, begins, axis=1)


@contextmanager
def _in_eval_mode(model: GPT) -> Iterator[None]:
    """Switch a model's dropout off, and give the model back its mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
