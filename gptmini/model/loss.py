"""Cross-entropy of the next token, whole or in pieces that never hold all logits of a large vocabulary at once."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.nn import functional as F

from gptmini.model.gpt import GPT

LOGITS_AT_ONCE = 2**24  # 64 MB in float32, of which a loss needs several copies


def training_loss(model: GPT, tokens: Tensor, targets: Tensor) -> Tensor:
    """next_token_loss(model(tokens), targets), holding at most LOGITS_AT_ONCE logits; compiled code holds them all."""
    if targets.numel() * model.config.vocab_size <= LOGITS_AT_ONCE or torch.compiler.is_compiling():
        return next_token_loss(model(tokens), targets)
    return PiecewiseLoss.apply(model.hidden(tokens), model.unembedding_weight, targets, model)


def rounded_training_loss(model: GPT, dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
    """training_loss of (tokens, targets) by the model with every weight rounded to dtype where it is used.

    The residual stream, and all that is not summed up, is of that dtype then; torch's kernels keep the statistics of
    norms and of the softmax in float32, and the loss is computed in it. Gradients reach the weights in the weights' own
    dtype. Unlike under autocast nothing is decided by the kind of operation.
    """
    loss = _Loss(model)
    weights = dict(loss.named_parameters())

    def compute(tokens: Tensor, targets: Tensor) -> Tensor:
        rounded = {name: weight.to(dtype) for name, weight in weights.items()}
        return functional_call(loss, rounded, (tokens, targets))

    return compute


class _Loss(nn.Module):
    """training_loss as a module, whose weights functional_call can replace."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return training_loss(self.model, tokens, targets)


def row_pieces(model: GPT, hidden: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Hidden states (B, T, C) and targets (B, T) as rows, (1, n, C) and (n,), n * V being at most LOGITS_AT_ONCE."""
    n_rows = max(1, LOGITS_AT_ONCE // model.config.vocab_size)
    return zip(hidden.flatten(0, 1).unsqueeze(0).split(n_rows, dim=1), targets.flatten().split(n_rows), strict=True)


class PiecewiseLoss(torch.autograd.Function):
    """Mean loss of hidden states (B, T, C), piece by piece, each piece's gradients computed while its logits are there.

    apply(hidden, unembedding_weight, targets, model); targets are int64 (B, T).
    """

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, targets: Tensor, model: GPT) -> Tensor:
        """Compute the loss, and keep the gradients of it."""
        loss = 0.0
        hidden_grads = []
        weight_grad = None
        if weight.requires_grad:  # summed over many pieces: in float32, whatever the precision of a piece
            weight_grad = torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
        for rows, row_targets in row_pieces(model, hidden, targets):
            with torch.enable_grad():
                rows = rows.detach().requires_grad_()  # (1, n, C)
                share = next_token_loss(model.unembed(rows), row_targets, reduction="sum") / targets.numel()
                rows_grad, *rest = torch.autograd.grad(share, [rows, weight] if weight.requires_grad else [rows])
            hidden_grads.append(rows_grad)
            for grad in rest:
                weight_grad += grad
            loss += share.detach()
        if weight_grad is not None:
            weight_grad = weight_grad.to(weight.dtype)
        ctx.save_for_backward(torch.cat(hidden_grads, dim=1).view_as(hidden), weight_grad)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients that were kept."""
        hidden_grad, weight_grad = ctx.saved_tensors
        return grad * hidden_grad, None if weight_grad is None else grad * weight_grad, None, None


def next_token_loss(logits: Tensor, targets: Tensor, *, reduction: str = "mean") -> Tensor:
    """Cross-entropy of targets, int64 (B, T), under logits (B, T, V), in nats per token, in float32 or wider.

    reduction is mean or sum over all tokens, which give a scalar, or none, which gives (B * T,).
    """
    logits = logits.flatten(0, 1)  # (B * T, V)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide, targets.flatten(), reduction=reduction)
