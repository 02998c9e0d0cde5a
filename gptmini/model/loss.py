"""Cross-entropy of the next token, at once or in pieces that never hold all logits of a large vocabulary."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from gptmini.model.gpt import GPT

LOGITS_AT_ONCE = 2**24  # 64 MB in float32; a loss needs several times as much
# Just below 32 MB in float32: gptmini.hardware.keep_freed_memory has the memory of larger tensors taken anew each step.
LOGITS_AT_ONCE_ON_CPU = 2**23 - 1


def training_loss(
    model: GPT,
    tokens: Tensor,
    targets: Tensor,
    *,
    dtype: torch.dtype | None = None,
    counted_share: float = 1.0,
) -> Tensor:
    """Compute next_token_loss(model(tokens), targets) with at most logits_at_once(device) logits in memory.

    Compiled code is not cut into pieces, and holds all logits.

    Args:
        model: the GPT to train.
        tokens: int64 (B, T).
        targets: int64 (B, T), tokens shifted by one; -100 where they do not count.
        counted_share: of all targets of the training text that count. The sum of the losses is divided by so many of
            B * T, and not by the number that happen to be in this batch. So each counted token weighs the same,
            however a step is divided into micro-batches, and a batch without any has the loss 0.
        dtype: of all activations. With bfloat16 every weight is rounded where it is used, while the loss, and in
            torch's kernels the statistics of norms and of the softmax, stay in float32. Gradients reach the weights in
            the weights' own dtype. None is the dtype of the weights, or what autocast chooses for each operation.

    Returns the mean loss in nats per token, a scalar.
    """
    hidden = model.hidden(tokens, dtype=dtype)  # (B, T, C)
    n_logits = targets.numel() * model.config.vocab_size
    if n_logits <= logits_at_once(hidden.device) or torch.compiler.is_compiling():
        if counted_share == 1:
            return next_token_loss(model.unembed(hidden), targets)
        nats = next_token_loss(model.unembed(hidden), targets, reduction="sum")
        return nats / (targets.numel() * counted_share)
    loss = PiecewiseLoss.apply(hidden, model.unembedding_weight, targets, model)
    return loss / counted_share


def logits_at_once(device: torch.device) -> int:
    """Most logits that a device holds in memory at once."""
    return LOGITS_AT_ONCE_ON_CPU if device.type == "cpu" else LOGITS_AT_ONCE


def row_pieces(model: GPT, hidden: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut hidden states and targets into pieces of n positions whose n * V logits are at most logits_at_once(device).

    Args:
        model: the GPT that will turn the hidden states into logits.
        hidden: (B, T, C).
        targets: int64 (B, T).

    Returns an iterator over pairs of hidden states, (1, n, C), and targets, (n,).
    """
    n_rows = max(1, logits_at_once(hidden.device) // model.config.vocab_size)
    pieces = hidden.flatten(0, 1).unsqueeze(0).split(n_rows, dim=1)  # (1, n, C) each
    target_pieces = targets.flatten().split(n_rows)  # (n,) each
    return zip(pieces, target_pieces, strict=True)


class PiecewiseLoss(torch.autograd.Function):
    """Mean loss of hidden states (B, T, C), piece by piece.

    The gradients of a piece are computed in the forward pass, while the logits of the piece are in memory. Call as
    PiecewiseLoss.apply(hidden, unembedding_weight, targets, model), with targets int64 (B, T).
    """

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, targets: Tensor, model: GPT) -> Tensor:
        """Compute the loss and its gradients; keep the gradients for the backward pass."""
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        # Rounded once for all pieces, as the whole loss rounds it.
        rounded = weight.detach().to(hidden.dtype)  # (V padded, C)
        hidden_grads = []
        weight_grad = None
        if weight.requires_grad:
            # The gradients of many pieces are summed in float32 or wider, so that the sum is not rounded at each piece.
            wide = torch.promote_types(weight.dtype, torch.float32)
            weight_grad = torch.zeros_like(weight, dtype=wide)  # (V padded, C)
            rounded.requires_grad_()

        for rows, row_targets in row_pieces(model, hidden, targets):  # (1, n, C), (n,)
            with torch.enable_grad():
                rows = rows.detach().requires_grad_()  # (1, n, C)
                # The logits have no name here, so that they are freed before the next piece's are computed.
                nats = next_token_loss(model.unembed(rows, rounded), row_targets, reduction="sum")
                share = nats / targets.numel()  # summed over all pieces, the shares are the mean
                inputs = [rows] if weight_grad is None else [rows, rounded]
                grads = torch.autograd.grad(share, inputs)
            hidden_grads.append(grads[0])  # (1, n, C)
            if weight_grad is not None:
                weight_grad += grads[1]  # (V padded, C)
            loss += share.detach()

        if weight_grad is not None:
            weight_grad = weight_grad.to(weight.dtype)
        hidden_grad = torch.cat(hidden_grads, dim=1).view_as(hidden)  # (B, T, C)
        ctx.save_for_backward(hidden_grad, weight_grad)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients that the forward pass kept by the gradient of the loss, a scalar."""
        hidden_grad, weight_grad = ctx.saved_tensors
        if weight_grad is not None:
            weight_grad = grad * weight_grad  # (V padded, C)
        return grad * hidden_grad, weight_grad, None, None


def next_token_loss(logits: Tensor, targets: Tensor, *, reduction: str = "mean") -> Tensor:
    """Cross-entropy of targets under logits, in nats per token, computed in float32 or wider.

    Args:
        logits: (B, T, V).
        targets: int64, (B, T) or (B * T,).
        reduction: mean or sum over all tokens, or none.

    Returns a scalar; for reduction none (B * T,).
    """
    logits = logits.flatten(0, 1)  # (B * T, V)
    if logits.dtype != torch.float64:
        logits = logits.float()
    return F.cross_entropy(logits, targets.flatten(), reduction=reduction)
