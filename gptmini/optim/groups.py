"""Which parameter gets which treatment, and the optimizers that take them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gptmini.checks import UserError, number, shown, whole
from gptmini.optim.muon import MuonAdamW

# Largest learning rate: weights are kept in float32, which holds no larger number.
LARGEST_RATE = torch.finfo(torch.float32).max
# Kinds of weights, each with a learning rate of its own: matrices in the blocks; embeddings of tokens and positions;
# the unembedding, also where it is the embedding; gains, biases and everything else.
KINDS = ("matrices", "embedding", "unembedding", "scalars")


def adamw(
    model: nn.Module,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    lr_scale: Mapping[str, float] | None = None,
) -> torch.optim.AdamW:
    """Build AdamW for a model's trained parameters, with weight decay on matrices alone, in one fused kernel.

    Args:
        model: parameters of two and more dimensions count as matrices; frozen parameters are left out.
        lr: peak learning rate, at least 0; a schedule multiplies it.
        betas: decay rates of the first and of the second moment, each in [0, 1).
        eps: number, at least 0, that is added to the root of the second moment.
        weight_decay: a step shrinks every matrix by the factor 1 - lr * weight_decay; at least 0.
        lr_scale: factor on lr for each of KINDS, at least 0; None for 1 each.

    Raises UserError: a value of the wrong type or out of range.
    Source: Loshchilov and Hutter 2019; decay on matrices alone as in Brown et al. 2020, appendix B.
    """
    _check_rate("lr", lr)
    number("eps", eps, least=0)
    number("weight_decay", weight_decay, least=0)
    _check_pair("betas", betas)

    scale = _checked_scale(lr_scale)
    groups = []
    for kind, parameters in _sort_parameters(model).items():
        matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
        vectors = [parameter for parameter in parameters if parameter.ndim < 2]
        groups.append(
            {
                "name": kind,
                "params": matrices,
                "weight_decay": weight_decay,
                "peak_lr": lr * scale[kind],
            }
        )
        groups.append(
            {
                "name": kind,
                "params": vectors,
                "weight_decay": 0.0,
                "peak_lr": lr * scale[kind],
            }
        )
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=lr, betas=tuple(betas), eps=eps, fused=True)


def muon(
    model: nn.Module,
    *,
    lr: float,
    embedding_lr: float,
    unembedding_lr: float,
    scalar_lr: float,
    momentum: tuple[float, float],
    momentum_warmup_steps: int,
    ns_steps: int,
    weight_decay: float,
    cautious: bool,
    betas: tuple[float, float],
    eps: float,
    lr_scale: Mapping[str, float] | None = None,
) -> MuonAdamW:
    """Build Muon for the trained matrices inside model.blocks, and AdamW without weight decay for all other parameters.

    Args:
        model: a GPT; frozen parameters are left out.
        lr: peak learning rate of Muon, at least 0; a schedule multiplies it, as it does the three rates of AdamW.
        embedding_lr: peak learning rate of the token and position embeddings.
        unembedding_lr: peak learning rate of the unembedding, and of the token embedding where the two are tied.
        scalar_lr: peak learning rate of gains, biases and every other parameter.
        momentum: Muon's momentum on the first step, and from momentum_warmup_steps on; each in [0, 1).
        momentum_warmup_steps: optimizer steps over which the momentum changes linearly.
        ns_steps: iterations of Newton-Schulz in each orthogonalization, at least 1.
        weight_decay: a step shrinks Muon's matrices by the factor 1 - lr * weight_decay; at least 0.
        cautious: decay only those numbers that the step itself moves towards 0 (Chen et al. 2025).
        betas: decay rates of AdamW's two moments, each in [0, 1).
        eps: number, at least 0, that AdamW adds to the root of the second moment.
        lr_scale: factor on the learning rate of each of KINDS, at least 0; None for 1 each.

    Raises UserError: a value of the wrong type or out of range.
    """
    _check_rate("lr", lr)
    _check_rate("embedding_lr", embedding_lr)
    _check_rate("unembedding_lr", unembedding_lr)
    _check_rate("scalar_lr", scalar_lr)
    number("weight_decay", weight_decay, least=0)
    number("eps", eps, least=0)
    _check_pair("betas", betas)
    _check_pair("momentum", momentum)
    whole("momentum_warmup_steps", momentum_warmup_steps, least=0)
    whole("ns_steps", ns_steps)
    if type(cautious) is not bool:
        raise UserError(f"cautious must be true or false, got {cautious!r}")

    sorted_parameters = _sort_parameters(model)
    scale = _checked_scale(lr_scale)

    groups = [
        {
            "name": "matrices",
            "params": sorted_parameters["matrices"],
            "lr": lr * scale["matrices"],
            "peak_lr": lr * scale["matrices"],
            "kind": "muon",
            "momentum": list(momentum),
            "momentum_warmup_steps": momentum_warmup_steps,
            "ns_steps": ns_steps,
            "weight_decay": weight_decay,
            "cautious": cautious,
        },
        {
            "name": "embedding",
            "params": sorted_parameters["embedding"],
            "lr": embedding_lr * scale["embedding"],
            "peak_lr": embedding_lr * scale["embedding"],
            "kind": "adamw",
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": 0.0,
            "fused": True,
        },
        {
            "name": "unembedding",
            "params": sorted_parameters["unembedding"],
            "lr": unembedding_lr * scale["unembedding"],
            "peak_lr": unembedding_lr * scale["unembedding"],
            "kind": "adamw",
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": 0.0,
            "fused": True,
        },
        {
            "name": "scalars",
            "params": sorted_parameters["scalars"],
            "lr": scalar_lr * scale["scalars"],
            "peak_lr": scalar_lr * scale["scalars"],
            "kind": "adamw",
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": 0.0,
            "fused": True,
        },
    ]
    return MuonAdamW([group for group in groups if group["params"]])


def set_learning_rate(optimizer: torch.optim.Optimizer, multiplier: float) -> None:
    """Set the lr of each group to multiplier times the group's peak_lr."""
    for group in optimizer.param_groups:
        group["lr"] = multiplier * group["peak_lr"]


def leave_out(optimizer: torch.optim.Optimizer, not_finite: Tensor) -> None:
    """Make the optimizer's next step change nothing if not_finite is 1.0; prepare an ordinary step if it is 0.0.

    Muon and torch's fused Adam and AdamW read the flag on the device, as they do with torch's GradScaler, so that the
    host need not wait for it. For every other optimizer the host reads the flag and drops the gradients: torch's
    fused SGD, given the flag on its first step, would go on with a momentum that was never written. Adam and AdamW on
    Apple's GPUs ignore the flag, so that there the gradients are dropped too.

    Args:
        not_finite: scalar on the weights' device, 1.0 where the loss or a gradient is not finite, otherwise 0.0.
    """
    is_adam = isinstance(optimizer, torch.optim.Adam)
    is_fused_adam = is_adam and getattr(optimizer, "_step_supports_amp_scaling", False)
    reads_flag = is_fused_adam or isinstance(optimizer, MuonAdamW)

    if reads_flag and not_finite.device.type != "mps":
        optimizer.found_inf = not_finite  # pyrefly: ignore[missing-attribute]
    elif not_finite.item():
        # An optimizer leaves a parameter without a gradient as it is.
        optimizer.zero_grad(set_to_none=True)


def _sort_parameters(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Put each trained parameter of a GPT into exactly one list, under the name of its group."""
    is_tied = not hasattr(model, "unembedding")
    unembedding_name = "embedding.weight" if is_tied else "unembedding.weight"

    lists = {kind: [] for kind in KINDS}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.ndim == 2 and name.startswith("blocks."):
            lists["matrices"].append(parameter)
        elif name == unembedding_name:
            lists["unembedding"].append(parameter)
        elif name.endswith("embedding.weight"):
            lists["embedding"].append(parameter)
        else:
            lists["scalars"].append(parameter)
    return lists


def _checked_scale(lr_scale: Mapping[str, float] | None) -> dict[str, float]:
    """The factor on the learning rate of each of KINDS; UserError for a factor below 0, or of another kind."""
    scale = dict.fromkeys(KINDS, 1.0)
    if lr_scale is not None and not isinstance(lr_scale, Mapping):
        raise UserError(f"lr_scale must have a factor for each of its keys, got {shown(lr_scale)}")
    for kind, factor in (lr_scale or {}).items():
        if kind not in scale:
            raise UserError(
                f"lr_scale must have a factor for {', '.join(KINDS)}, got {shown(kind)}"
            )
        _check_rate(f"lr_scale.{kind}", factor)
        scale[kind] = factor
    return scale


def _check_rate(name: str, rate: float) -> None:
    """Raise UserError unless a learning rate is a number from 0 to the largest float32."""
    if number(name, rate, least=0) > LARGEST_RATE:
        raise UserError(f"{name} must be a number that float32 holds, got {shown(rate)}")


def _check_pair(name: str, value: object) -> None:
    """Raise UserError unless value is two numbers in [0, 1)."""
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    if not is_pair or not all(_is_below_one(part) for part in value):
        raise UserError(f"{name} must be two numbers from 0 to below 1, got {shown(value)}")


def _is_below_one(value: Any) -> bool:
    """Whether value is a number in [0, 1)."""
    return type(value) in (int, float) and 0 <= value < 1
