"""Parameter groups, and operations for every optimizer: set the learning rate, and skip a step."""

import torch
from torch import Tensor, nn

from gptmini.optim.muon import MuonAdamW

# Kinds of weights, each with its own learning rate: matrices in the blocks; token and position embeddings; the
# unembedding, tied or not; gains, biases and all other parameters.
KINDS = ("matrices", "embedding", "unembedding", "scalars")


def set_learning_rate(optimizer: torch.optim.Optimizer, multiplier: float) -> None:
    """Set the lr of each group to multiplier times the group's peak_lr."""
    for group in optimizer.param_groups:
        group["lr"] = multiplier * group["peak_lr"]


def skip_step_if(optimizer: torch.optim.Optimizer, not_finite: Tensor) -> None:
    """Make the optimizer skip its next step if not_finite is 1.0, or take a normal step if it is 0.0.

    Muon and torch's fused Adam and AdamW read the flag on the device, so the host does not wait. torch's GradScaler
    sets the same flag. For all other optimizers, including torch's fused SGD, the host reads the flag and drops the
    gradients. If fused SGD skipped its first step by the flag, it would continue with an uninitialized momentum. On
    Apple's GPUs, Adam and AdamW ignore the flag, so the host drops the gradients there, too.

    Args:
        not_finite: scalar on the weights' device: 1.0 if the loss or a gradient is not finite, else 0.0.
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
    """Put each trained parameter of a GPT into exactly one list, by its kind."""
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
