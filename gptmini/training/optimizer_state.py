"""Convert the optimizer state to the form of a checkpoint, and restore the optimizer state in a resumed run.

A checkpoint stores the optimizer state of each parameter under a name. The state_dict of the checkpoint stores the
parameter under the same name. torch would store the optimizer state under a number that depends on the parameter groups
of the optimizer. Every function in this file takes a dict that maps the names in the GPT to parameters.

torch's get_optimizer_state_dict and set_optimizer_state_dict also support MuonAdamW. But if an optimizer has no state,
these functions make the optimizer take a step with zero gradients. A checkpoint that was saved before the first step
would then count one step, and resuming would need memory for gradients. So gptmini does not use these functions.
"""

from collections.abc import Mapping

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from gptmini.checkpoint.file import WEIGHTS_PREFIX
from gptmini.training.devices import distributed

Moments = Mapping[str, Mapping[str, Tensor]]


def parameter_names(optimizer: Optimizer, parameters: Mapping[str, Parameter]) -> list[str]:
    """Return the names that the parameters of an optimizer have in the state_dict of a checkpoint.

    The names are in the order of the parameter groups.
    """
    name_of = {}
    for name, parameter in parameters.items():
        name_of[parameter] = f"{WEIGHTS_PREFIX}{name}"

    names = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            names.append(name_of[parameter])
    return names


def gather_optimizer_state(optimizer: Optimizer, parameters: Mapping[str, Parameter]) -> Moments:
    """Return the full optimizer state on the first process, in the form of a checkpoint.

    Under FSDP2, every process must call this function.
    """
    moments = {}
    for name in parameter_names(optimizer, parameters):
        parameter = parameters[name.removeprefix(WEIGHTS_PREFIX)]
        if parameter in optimizer.state:  # a parameter has no state before its first step
            moments[name] = distributed.gather_on_first(optimizer.state[parameter])
    return moments


def restore_optimizer_state(
    moments: Moments, optimizer: Optimizer, parameters: Mapping[str, Parameter]
) -> None:
    """Load the optimizer state of a checkpoint into an optimizer. Under FSDP2, load only the shard of this process."""
    numbered: dict[int, dict[str, Tensor]] = {}
    for number, name in enumerate(parameter_names(optimizer, parameters)):
        if name not in moments:  # a parameter has no state before its first step
            continue
        parameter = parameters[name.removeprefix(WEIGHTS_PREFIX)]
        numbered[number] = {}
        for moment, tensor in moments[name].items():
            numbered[number][moment] = distributed.shard_like(tensor, parameter)

    # Restore only the state of each parameter. The settings in param_groups come from the configuration.
    settings = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": numbered, "param_groups": settings})
