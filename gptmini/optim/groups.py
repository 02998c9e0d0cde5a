"""Sort parameters into groups, and set the learning rate or skip a step with any optimizer."""

import torch
from torch import Tensor, nn

from gptmini.optim.muon import MuonAdamW

# Kinds of weights. Each kind has its own learning rate. The fields of RateFactors describe the kinds.
KINDS = ("matrices", "embedding", "unembedding", "scalars")


def set_learning_rate(optimizer: torch.optim.Optimizer, multiplier: float) -> None:
    """Set the lr of each group to the peak_lr of the group times the multiplier."""
    for group in optimizer.param_groups:
        group["lr"] = multiplier * group["peak_lr"]


def skip_step_if(optimizer: torch.optim.Optimizer, not_finite: Tensor) -> None:
    """Make the optimizer skip its next step if the flag not_finite is 1.0, or take a normal step if the flag is 0.0.

    Muon and torch's fused Adam and AdamW read the flag on the device, so the host does not wait. torch's GradScaler
    sets the same flag. For all other optimizers, including torch's fused SGD, the host reads the flag and drops the
    gradients. If fused SGD used the flag to skip its first step, it would continue with an uninitialized momentum. On
    Apple's GPUs, Adam and AdamW ignore the flag, so the host drops the gradients there, too.

    Args:
        optimizer: any optimizer.
        not_finite: a scalar on the device of the weights. It is 1.0 if the loss or a gradient is not finite, otherwise
            0.0.
    """
    is_adam = isinstance(optimizer, torch.optim.Adam)
    is_fused_adam = is_adam and getattr(optimizer, "_step_supports_amp_scaling", False)
    reads_flag = is_fused_adam or isinstance(optimizer, MuonAdamW)

    if reads_flag and not_finite.device.type != "mps":
        optimizer.found_inf = not_finite  # pyrefly: ignore[missing-attribute]
    elif not_finite.item():
        # An optimizer does not change a parameter without a gradient.
        optimizer.zero_grad(set_to_none=True)


def sort_parameters(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Sort the trained parameters of a GPT by kind. Each parameter is in exactly one list of the result."""
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
