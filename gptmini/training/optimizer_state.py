"""Optimizer state in a checkpoint: stored by parameter name, and restored in a resumed run.

A checkpoint stores the optimizer state under the parameter's name in its state_dict. torch's own parameter numbers
depend on the optimizer's groups. Every function here takes parameters by their names in the GPT.

torch's get_optimizer_state_dict and set_optimizer_state_dict support MuonAdamW too. But they let an optimizer without
state take a step on zero gradients: a checkpoint from before the first step would count one step, and resuming would
need memory for gradients. So gptmini does not use them.
"""

from collections.abc import Mapping

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from gptmini.checkpoint.file import WEIGHTS_PREFIX
from gptmini.training.devices import distributed

Moments = Mapping[str, Mapping[str, Tensor]]


def parameter_names(optimizer: Optimizer, parameters: Mapping[str, Parameter]) -> list[str]:
    """Return the names of an optimizer's parameters in a checkpoint's state_dict, in the order of its groups."""
    name_of = {}
    for name, parameter in parameters.items():
        name_of[parameter] = f"{WEIGHTS_PREFIX}{name}"

    names = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            names.append(name_of[parameter])
    return names


def gather_optimizer_state(optimizer: Optimizer, parameters: Mapping[str, Parameter]) -> Moments:
    """Return the full optimizer state on the first process, as a checkpoint stores it; collective under FSDP2."""
    moments = {}
    for name in parameter_names(optimizer, parameters):
        parameter = parameters[name.removeprefix(WEIGHTS_PREFIX)]
        if parameter in optimizer.state:  # false before its first step
            moments[name] = distributed.gather_on_first(optimizer.state[parameter])
    return moments


def restore_optimizer_state(
    moments: Moments, optimizer: Optimizer, parameters: Mapping[str, Parameter]
) -> None:
    """Load a checkpoint's optimizer state into an optimizer; under FSDP2, only this process's shard of it."""
    numbered: dict[int, dict[str, Tensor]] = {}
    for number, name in enumerate(parameter_names(optimizer, parameters)):
        if name not in moments:  # true before its first step
            continue
        parameter = parameters[name.removeprefix(WEIGHTS_PREFIX)]
        numbered[number] = {}
        for moment, tensor in moments[name].items():
            numbered[number][moment] = distributed.shard_like(tensor, parameter)

    # Restore only the optimizer state. The settings in param_groups come from the configuration.
    settings = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": numbered, "param_groups": settings})
