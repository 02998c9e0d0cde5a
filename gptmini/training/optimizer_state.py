"""Optimizer state in a checkpoint: stored by parameter name, and restored in a resumed run.

A checkpoint stores the optimizer state of a parameter under the name that the parameter has in the checkpoint's
state_dict. torch would store it under a number, which depends on the optimizer's groups. Every function here takes
parameters by their names in the GPT.

torch's get_optimizer_state_dict and set_optimizer_state_dict also support MuonAdamW. But if an optimizer has no state,
they let it take a step on zero gradients. A checkpoint from before the first step would then count one step, and
resuming would need memory for gradients. So gptmini does not use them.
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
    """Return the full optimizer state on the first process, in the form of a checkpoint. Collective under FSDP2."""
    moments = {}
    for name in parameter_names(optimizer, parameters):
        parameter = parameters[name.removeprefix(WEIGHTS_PREFIX)]
        if parameter in optimizer.state:  # false before the first step of the parameter
            moments[name] = distributed.gather_on_first(optimizer.state[parameter])
    return moments


def restore_optimizer_state(
    moments: Moments, optimizer: Optimizer, parameters: Mapping[str, Parameter]
) -> None:
    """Load a checkpoint's optimizer state into an optimizer. Under FSDP2, load only this process's shard."""
    numbered: dict[int, dict[str, Tensor]] = {}
    for number, name in enumerate(parameter_names(optimizer, parameters)):
        if name not in moments:  # true before the first step of the parameter
            continue
        parameter = parameters[name.removeprefix(WEIGHTS_PREFIX)]
        numbered[number] = {}
        for moment, tensor in moments[name].items():
            numbered[number][moment] = distributed.shard_like(tensor, parameter)

    # Restore only the optimizer state. The settings in param_groups come from the configuration.
    settings = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": numbered, "param_groups": settings})
