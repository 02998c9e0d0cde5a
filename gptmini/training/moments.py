"""The optimizer's moments in a checkpoint: written by name, and given to the optimizer of a run that goes on.

Moments are kept by the name of their parameter in a checkpoint's state_dict: the numbers that torch gives to parameters
follow from the optimizer's groups. Every function here takes parameters by their names in the GPT.

torch's get_optimizer_state_dict and set_optimizer_state_dict gather and hand out the moments of MuonAdamW too. They are
not used, because they let an optimizer that has no moments yet take a step on gradients of zeros: a checkpoint from
before the first step would count one step, and resuming would need memory for gradients.
"""

from collections.abc import Mapping

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from gptmini.checkpoint.file import WEIGHTS_PREFIX
from gptmini.training.devices import distributed

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


def whole_moments(optimizer: Optimizer, parameters: Mapping[str, Parameter]) -> Moments:
    """The moments of an optimizer as a checkpoint holds them, whole on the first process; collective under FSDP2."""
    moments = {}
    for name in names_in(optimizer, parameters):
        parameter = parameters[name.removeprefix(WEIGHTS_PREFIX)]
        if parameter in optimizer.state:  # not before its first step
            moments[name] = distributed.gathered_on_first(optimizer.state[parameter])
    return moments


def restore_moments(
    moments: Moments, optimizer: Optimizer, parameters: Mapping[str, Parameter]
) -> None:
    """Give an optimizer the moments of a checkpoint: under FSDP2, this process's share of them."""
    numbered: dict[int, dict[str, Tensor]] = {}
    for number, name in enumerate(names_in(optimizer, parameters)):
        if name not in moments:  # not before its first step
            continue
        parameter = parameters[name.removeprefix(WEIGHTS_PREFIX)]
        numbered[number] = {}
        for moment, tensor in moments[name].items():
            numbered[number][moment] = distributed.share_like(tensor, parameter)

    # Only moments are restored. The settings in param_groups stay those of the configuration.
    settings = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": numbered, "param_groups": settings})
