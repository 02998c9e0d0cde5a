"""How well a model predicts held-out text: nats per token, perplexity, bits per byte."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gptmini.checks import UserError
from gptmini.model import GPT, next_token_loss
from gptmini.model.loss import row_pieces


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
        """Weigh by token: nats summed over n_tokens predictions; tokens_per_byte is of the whole split."""
        loss = nats / n_tokens  # the first token, which nothing predicts, is charged at the mean in bits per byte
        return cls(loss, n_tokens, loss / math.log(2) * tokens_per_byte)


@torch.no_grad()
def token_losses(model: GPT, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """What each of int64 (B, T) targets costs a model in eval mode, in nats, and the id it held likeliest; (B, T)."""
    losses, likeliest = [], []
    for rows, row_targets in row_pieces(model, model.hidden(tokens), targets):  # not all logits at once
        logits = model.unembed(rows)  # (1, n, V)
        losses.append(next_token_loss(logits, row_targets, reduction="none"))
        likeliest.append(logits.argmax(dim=-1).squeeze(0))
    return torch.cat(losses).view_as(targets), torch.cat(likeliest).view_as(targets)


def sum_of_nats(losses: Tensor) -> Tensor:
    """Sum of losses of any shape, (), in float64 where the device has it, so that batches can be added up."""
    return losses.sum(dtype=torch.float32 if losses.device.type == "mps" else torch.float64)


def evaluate(model: GPT, batches: Iterable[tuple[Tensor, Tensor]], *, tokens_per_byte: float) -> Evaluation:
    """Evaluate on (tokens, targets), int64 (B, T) of any sizes; each token weighs the same, no random number is drawn.

    The model is put in eval mode and left as it was; tokens_per_byte is of the split that the batches are from.
    Raises UserError: no batch.
    """
    device = model.embedding.weight.device
    was_training = model.training
    model.eval()
    nats, n_tokens = 0.0, 0
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
