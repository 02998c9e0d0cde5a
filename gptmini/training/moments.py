"""Moments of a checkpoint: whether they are those of an optimizer's parameters, and how the optimizer gets them.

Moments are kept by the name of their parameter in a checkpoint's state_dict. Every function here takes parameters by
their names in the GPT.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from gptmini.checkpoint.file import WEIGHTS_PREFIX
from gptmini.optim.muon import MOMENTS
from gptmini.training import sharding
from gptmini.user_error import UserError

Moments = Mapping[str, Mapping[str, Tensor]]


def names_in(optimizer: Optimizer, parameters: Mapping[str, Parameter]) -> list[str]:
    """The names of an optimizer's parameters in a checkpoint's state_dict, in the order of its groups."""
    name_of = {}
    for name, parameter in parameters.items():
        name_of[parameter] = f"{WEIGHTS_PREFIX}{name}"

    names = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            names.append(name_of[parameter])
    return names


def check_moments(
    moments: Moments, optimizer: Optimizer, parameters: Mapping[str, Parameter]
) -> None:
    """Raise UserError unless moments are those of an optimizer's parameters, in their shapes and dtypes."""
    names = names_in(optimizer, parameters)
    surplus = set(moments) - set(names)
    if surplus:
        raise UserError(
            f"the optimizer trains no {surplus.pop()!r}, of which the checkpoint holds its state"
        )

    groups = [group for group in optimizer.param_groups for _ in group["params"]]
    for name, group in zip(names, groups, strict=True):
        parameter = parameters[name.removeprefix(WEIGHTS_PREFIX)]
        kinds = MOMENTS[group.get("kind", "adamw")]
        wanted = dict.fromkeys(kinds, (parameter.shape, parameter.dtype))
        wanted["step"] = (torch.Size(()), torch.float32)

        found = {}
        for moment, tensor in moments.get(name, {}).items():
            found[moment] = (tensor.shape, tensor.dtype)
        if found != wanted:
            raise UserError(f"the optimizer's state of {name} must be {wanted}, got {found}")


def restore_moments(
    moments: Moments, optimizer: Optimizer, parameters: Mapping[str, Parameter]
) -> None:
    """Give an optimizer moments that check_moments has checked, or this process's share of them."""
    numbered: dict[int, dict[str, Tensor]] = {}
    for number, name in enumerate(names_in(optimizer, parameters)):
        parameter = parameters[name.removeprefix(WEIGHTS_PREFIX)]
        numbered[number] = {}
        for moment, tensor in moments[name].items():
            numbered[number][moment] = sharding.share_like(tensor, parameter)

    # Only moments are restored. The settings in param_groups stay those of the configuration.
    settings = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": numbered, "param_groups": settings})
