"""How well a model predicts held-out text: nats per token, perplexity, bits per byte."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gptmini.model import GPT, next_token_loss
from gptmini.model.gpt import row_pieces


@dataclass(frozen=True)
class Evaluation:
    """Result over a number of predicted tokens."""

    loss: float  # nats per token
    n_tokens: int  # tokens predicted
    bits_per_byte: float  # loss in bits, times tokens per UTF-8 byte of the whole split

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite where that overflows."""
        return math.inf if self.loss > 709 else math.exp(self.loss)  # e^709 is about the largest float64

    @classmethod
    def from_sums(cls, nats: float, n_tokens: int, tokens_per_byte: float) -> "Evaluation":
        """Weigh by token: nats summed over n_tokens predictions.

        tokens_per_byte is of the whole split, so that the first token, which nothing predicts, is charged at the mean.
        """
        loss = nats / n_tokens
        return cls(loss, n_tokens, loss / math.log(2) * tokens_per_byte)


@torch.no_grad()
def sum_of_nats(model: GPT, tokens: Tensor, targets: Tensor) -> Tensor:
    """Loss of a model in eval mode over int64 (B, T) targets, summed in float64, so that batches can be added up."""
    widest = torch.float32 if tokens.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
    pieces = row_pieces(model, model.hidden(tokens), targets)  # of a large vocabulary not all logits at once
    return sum(next_token_loss(model.unembed(rows), row, reduction="none").sum(dtype=widest) for rows, row in pieces)


def evaluate(model: GPT, batches: Iterable[tuple[Tensor, Tensor]], *, tokens_per_byte: float) -> Evaluation:
    """Evaluate on (tokens, targets) batches, each token with the same weight; draws no random number.

    Args:
        model: is put in eval mode and left as it was.
        batches: int64 (B, T) pairs, of any sizes, at least one.
        tokens_per_byte: of the split that the batches are from.

    Raises ValueError: no batch.
    """
    device = model.embedding.weight.device
    was_training = model.training
    model.eval()
    nats, n_tokens = 0.0, 0
    try:
        for tokens, targets in batches:
            nats += sum_of_nats(model, tokens.to(device), targets.to(device)).item()
            n_tokens += targets.numel()
    finally:
        model.train(was_training)
    if not n_tokens:
        raise ValueError("an evaluation needs at least one batch, got none")
    return Evaluation.from_sums(nats, n_tokens, tokens_per_byte)
