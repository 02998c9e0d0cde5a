"""Which parameter gets which treatment, and the optimizers that take them."""

import sys

import torch
from torch import nn


def adamw(
    model: nn.Module, *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices alone, in one fused kernel.

    Args:
        model: its trainable parameters are taken, each once.
        lr: peak learning rate; a schedule multiplies it.
        betas: decay rates of the two moments, each in [0, 1).
        eps: added to the root of the second moment.
        weight_decay: shrinks matrices by lr * weight_decay a step; gains and biases are left alone.

    Raises:
        ValueError: a value of the wrong type or out of range.

    Source: Loshchilov and Hutter 2019; decay on matrices alone as in Brown et al. 2020, appendix B.
    """
    for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
        _check_number(name, value)
    if not isinstance(betas, list | tuple) or len(betas) != 2 or not all(_is_number(b) and 0 <= b < 1 for b in betas):
        raise ValueError(f"betas must be two numbers from 0 to below 1, got betas={betas}")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices, others = [p for p in trained if p.ndim >= 2], [p for p in trained if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [group | {"peak_lr": lr} for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=lr, betas=tuple(betas), eps=eps, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, multiplier: float) -> None:
    """Set each group's lr to multiplier times its peak."""
    for group in optimizer.param_groups:
        group["lr"] = multiplier * group["peak_lr"]


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _check_number(name: str, value: object) -> None:
    if not _is_number(value) or not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{name} must be a number of at least 0, got {name}={value!r}")
