"""Cross-entropy of the next token. The loss can be computed in pieces, which need less memory for logits."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from gptmini.model.gpt import GPT

LOGITS_AT_ONCE = 2**24  # 64 MB in float32; computing the loss takes several times this memory
# Just below 32 MB in float32. Larger tensors are allocated again in each step, even after a call of
# gptmini.system.hardware.keep_freed_memory.
LOGITS_AT_ONCE_ON_CPU = 2**23 - 1


def training_loss(
    model: GPT,
    tokens: Tensor,
    targets: Tensor,
    dropout_keys: Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
    counted_share: float = 1.0,
) -> Tensor:
    """Compute next_token_loss(model(tokens), targets) with at most logits_at_once(device) logits in memory.

    Compiled code keeps all logits in memory.

    Args:
        model: the GPT to train.
        tokens: int64 (B, T).
        targets: int64 (B, T), tokens shifted by one; targets of -100 are not counted.
        dropout_keys: int32 (B,); see GPT.hidden.
        counted_share: fraction of counted targets in the entire training text. The sum of the losses is divided by
            B * T * counted_share, not by the counted targets of this batch. Each counted token then has the same
            weight for every division of a step into micro-batches. A batch without counted tokens has a loss of 0.
        dtype: dtype of all activations. With bfloat16, each layer casts its weights to bfloat16. The loss stays in
            float32. Inside torch's kernels, the statistics of norms and softmax stay in float32, too. Gradients have
            the dtype of the weights. None: the dtype of the weights, or the dtype that autocast chooses.

    Returns the mean loss in nats per token, a scalar.
    """
    hidden = model.hidden(tokens, dropout_keys=dropout_keys, dtype=dtype)  # (B, T, C)
    n_logits = targets.numel() * model.config.vocab_size
    is_compiling = torch.compiler.is_compiling()
    if n_logits <= logits_at_once(hidden.device) or is_compiling:
        # Inductor's kernel for the gradient needs twice the time if the length of a row is odd, such as 50,257.
        logits = model.unembed(hidden, keep_padding=is_compiling and hidden.is_cuda)
        if counted_share == 1:
            return next_token_loss(logits, targets)
        nats = next_token_loss(logits, targets, reduction="sum")
        return nats / (targets.numel() * counted_share)
    loss = PiecewiseLoss.apply(hidden, model.unembedding_weight, targets, model)
    return loss / counted_share


def logits_at_once(device: torch.device) -> int:
    """Return the maximum number of logits to keep in memory on a device."""
    return LOGITS_AT_ONCE_ON_CPU if device.type == "cpu" else LOGITS_AT_ONCE


def split_rows(model: GPT, hidden: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Split hidden states and targets into pieces of n positions. n * V is at most logits_at_once(device).

    Args:
        model: the GPT that computes the logits.
        hidden: (B, T, C).
        targets: int64 (B, T).

    Returns an iterator over pairs of hidden states, (1, n, C), and targets, (n,).
    """
    n_rows = max(1, logits_at_once(hidden.device) // model.config.vocab_size)
    pieces = hidden.flatten(0, 1).unsqueeze(0).split(n_rows, dim=1)  # (1, n, C) each
    target_pieces = targets.flatten().split(n_rows)  # (n,) each
    return zip(pieces, target_pieces, strict=True)


class PiecewiseLoss(torch.autograd.Function):
    """The mean loss of hidden states (B, T, C), computed piece by piece.

    The forward pass also computes the gradients of each piece, while its logits are in memory. Call
    PiecewiseLoss.apply(hidden, unembedding_weight, targets, model), with targets int64 (B, T).
    """

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, targets: Tensor, model: GPT) -> Tensor:
        """Compute the loss and its gradients. Keep the gradients for the backward pass."""
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        # Cast once for all pieces, as the loss without pieces does.
        rounded = weight.detach().to(hidden.dtype)  # (V padded, C)
        hidden_grads = []
        weight_grad = None
        if weight.requires_grad:
            # Sum the gradients of the pieces in float32 or wider, to avoid a rounding error at each piece.
            wide = torch.promote_types(weight.dtype, torch.float32)
            weight_grad = torch.zeros_like(weight, dtype=wide)  # (V padded, C)
            rounded.requires_grad_()

        for rows, row_targets in split_rows(model, hidden, targets):  # (1, n, C), (n,)
            with torch.enable_grad():
                rows = rows.detach().requires_grad_()  # (1, n, C)
                # Do not keep the logits in a variable. They are then freed before the next piece computes its logits.
                nats = next_token_loss(model.unembed(rows, rounded), row_targets, reduction="sum")
                share = nats / targets.numel()  # the sum over all pieces is the mean loss
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
        """Multiply the stored gradients by the gradient of the loss, a scalar."""
        hidden_grad, weight_grad = ctx.saved_tensors
        if weight_grad is not None:
            weight_grad = grad * weight_grad  # (V padded, C)
        return grad * hidden_grad, weight_grad, None, None


def next_token_loss(logits: Tensor, targets: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy of targets under logits, in nats per token, computed in float32 or wider.

    Args:
        logits: (B, T, V).
        targets: int64, (B, T) or (B * T,).
        reduction: "mean", "sum" or "none".

    Returns a scalar, or (B * T,) if reduction is "none".
    """
    logits = logits.flatten(0, 1)  # (B * T, V)
    if logits.dtype != torch.float64:
        logits = logits.float()
    return F.cross_entropy(logits, targets.flatten(), reduction=reduction)
