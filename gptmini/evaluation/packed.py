"""How well a model predicts held-out text in windows side by side: nats per token, perplexity, bits per byte."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gptmini.model import GPT, next_token_loss
from gptmini.model.loss import row_pieces
from gptmini.user_error import UserError

LARGEST_EXPONENT = 709  # exp(709) is near the largest float64, and exp(710) overflows


def exponential(value: float) -> float:
    """exp(value), or infinity where exp overflows."""
    return math.inf if value > LARGEST_EXPONENT else math.exp(value)


@dataclass(frozen=True)
class Evaluation:
    """How well a model predicted a number of tokens."""

    loss: float  # nats per token
    n_tokens: int  # number of predicted tokens
    bits_per_byte: float  # loss in bits, times the tokens per UTF-8 byte of the whole split

    @property
    def perplexity(self) -> float:
        """exp(loss), or infinity where exp overflows."""
        return exponential(self.loss)

    @classmethod
    def from_sums(cls, nats: float, n_tokens: int, tokens_per_byte: float) -> "Evaluation":
        """Compute the figures from a sum over tokens, in which each token weighs the same.

        Args:
            nats: sum of the losses of n_tokens predicted tokens.
            n_tokens: number of predicted tokens, at least 1.
            tokens_per_byte: tokens per UTF-8 byte of the whole split.
        """
        loss = nats / n_tokens
        # The first token of a split is never predicted. tokens_per_byte counts it, which charges it the mean loss.
        bits_per_byte = loss / math.log(2) * tokens_per_byte
        return cls(loss=loss, n_tokens=n_tokens, bits_per_byte=bits_per_byte)


@torch.no_grad()
def token_losses(model: GPT, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the loss of each target, and the id that the model holds likeliest in the target's place.

    Args:
        model: a GPT in eval mode.
        tokens: int64 (B, T), on the model's device.
        targets: int64 (B, T), tokens shifted by one.

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


def sum_of_nats(losses: Tensor) -> Tensor:
    """Sum losses of any shape to a scalar in float64, so that the sums of many batches can be added up.

    Apple's GPUs have no float64; there the sum is float32.
    """
    dtype = torch.float32 if losses.device.type == "mps" else torch.float64
    return losses.sum(dtype=dtype)


def evaluate(
    model: GPT,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    tokens_per_byte: float,
) -> Evaluation:
    """Evaluate a model on batches; each token weighs the same, and no random number is drawn.

    Args:
        model: a GPT in either mode; it is in the same mode afterwards.
        batches: pairs of tokens and targets, int64 (B, T) of any sizes, on any device.
        tokens_per_byte: tokens per UTF-8 byte of the split that the batches are from.

    Raises UserError: batches is empty.
    """
    device = model.embedding.weight.device
    was_training = model.training
    nats = 0.0
    n_tokens = 0

    model.eval()
    try:
        for tokens, targets in batches:
            losses, _ = token_losses(model, tokens.to(device), targets.to(device))
            nats += sum_of_nats(losses).item()
            n_tokens += targets.numel()
    finally:
        model.train(was_training)

    if not n_tokens:
        raise UserError("an evaluation needs at least one batch, got none")
    return Evaluation.from_sums(nats, n_tokens, tokens_per_byte)
