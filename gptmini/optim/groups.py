"""Which parameter gets which treatment, and the optimizers that take them."""

import torch
from torch import Tensor, nn

from gptmini.checks import UserError, number, shown, whole
from gptmini.optim.muon import MuonAdamW


def adamw(
    model: nn.Module, *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW for a model's trainable parameters, with weight decay on matrices alone, in one fused kernel.

    Args:
        lr: peak learning rate; a schedule multiplies it.
        betas, eps: decay rates of the two moments, each in [0, 1); what is added to the root of the second.
        weight_decay: shrinks matrices by lr * weight_decay a step; gains and biases are left alone.

    Raises UserError: a value of the wrong type or out of range.
    Source: Loshchilov and Hutter 2019; decay on matrices alone as in Brown et al. 2020, appendix B.
    """
    number("lr", lr, least=0)
    number("eps", eps, least=0)
    number("weight_decay", weight_decay, least=0)
    _check_pair("betas", betas)

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim >= 2]
    others = [parameter for parameter in trained if parameter.ndim < 2]
    groups = [
        {"name": "matrices", "params": matrices, "weight_decay": weight_decay},
        {"name": "scalars", "params": others, "weight_decay": 0.0},
    ]
    groups = [group | {"peak_lr": lr} for group in groups if group["params"]]
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
) -> MuonAdamW:
    """Muon for the trained matrices inside model.blocks; AdamW, without weight decay, for all else that is trained.

    Args:
        lr: peak learning rate of Muon; the next three are AdamW's: unembedding_lr of a tied matrix too.
        momentum: of Muon, each in [0, 1): on the first step, and from momentum_warmup_steps on.
        ns_steps: of Newton-Schulz, for each orthogonalization.
        weight_decay: shrinks Muon's matrices by lr * weight_decay a step.
        cautious: decay only numbers that the step itself moves towards 0 (Chen et al. 2025).
        betas, eps: as for adamw.

    Raises UserError: a value of the wrong type or out of range.
    """
    rates = {"lr": lr, "embedding_lr": embedding_lr, "unembedding_lr": unembedding_lr, "scalar_lr": scalar_lr}
    for name, rate in rates.items():
        number(name, rate, least=0)
    number("weight_decay", weight_decay, least=0)
    number("eps", eps, least=0)
    _check_pair("betas", betas)
    _check_pair("momentum", momentum)
    whole("momentum_warmup_steps", momentum_warmup_steps, least=0)
    whole("ns_steps", ns_steps)
    if type(cautious) is not bool:
        raise UserError(f"cautious must be true or false, got {cautious!r}")

    names = dict(zip(rates, ("matrices", "embedding", "unembedding", "scalars"), strict=True))
    groups = {key: {"name": names[key], "params": [], "lr": rate, "peak_lr": rate} for key, rate in rates.items()}

    untied = hasattr(model, "unembedding")
    for name, parameter in filter(lambda item: item[1].requires_grad, model.named_parameters()):
        if parameter.ndim == 2 and name.startswith("blocks."):
            group = "lr"
        elif name == ("unembedding.weight" if untied else "embedding.weight"):
            group = "unembedding_lr"
        elif name.endswith("embedding.weight"):
            group = "embedding_lr"
        else:
            group = "scalar_lr"
        groups[group]["params"].append(parameter)

    groups["lr"] |= {"kind": "muon", "momentum": list(momentum), "momentum_warmup_steps": momentum_warmup_steps}
    groups["lr"] |= {"ns_steps": ns_steps, "weight_decay": weight_decay, "cautious": cautious}
    for name in rates.keys() - {"lr"}:
        groups[name] |= {"kind": "adamw", "betas": tuple(betas), "eps": eps, "weight_decay": 0.0, "fused": True}
    return MuonAdamW([group for group in groups.values() if group["params"]])


def set_learning_rate(optimizer: torch.optim.Optimizer, multiplier: float) -> None:
    """Set each group's lr to multiplier times its peak."""
    for group in optimizer.param_groups:
        group["lr"] = multiplier * group["peak_lr"]


def leave_out(optimizer: torch.optim.Optimizer, not_finite: Tensor) -> None:
    """Have the next step change nothing if not_finite, a scalar on the weights' device, is 1.0 rather than 0.0.

    Muon and torch's fused AdamW read such a flag on the device, where torch's GradScaler leaves it too, and the host
    need not wait. Of another optimizer the gradients are dropped, after a look at the flag: torch's fused SGD would
    begin with momentum that nothing was written to. On Apple's GPUs AdamW ignores the flag, and gradients are dropped.
    """
    fused = isinstance(optimizer, torch.optim.Adam) and getattr(optimizer, "_step_supports_amp_scaling", False)
    if (fused or isinstance(optimizer, MuonAdamW)) and not_finite.device.type != "mps":
        optimizer.found_inf = not_finite
    elif not_finite.item():
        optimizer.zero_grad(set_to_none=True)  # an optimizer leaves alone what has no gradient


def _check_pair(name: str, value: object) -> None:
    pair = isinstance(value, list | tuple) and len(value) == 2
    if not pair or not all(type(part) in (int, float) and 0 <= part < 1 for part in value):
        raise UserError(f"{name} must be two numbers from 0 to below 1, got {shown(value)}")
