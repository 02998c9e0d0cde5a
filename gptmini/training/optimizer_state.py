"""Convert the optimizer state to the form of a checkpoint, and restore the optimizer state in a resumed run.

A checkpoint stores the optimizer state of each parameter under the name of the parameter in its state_dict. torch would
store it under a number that depends on the parameter groups. The functions take a dict from names in the GPT to
parameters.

torch's get_optimizer_state_dict and set_optimizer_state_dict also support MuonAdamW. But if an optimizer has no state,
these functions make the optimizer take a step with zero gradients. A checkpoint that was saved before the first step
would then count one step, and resuming would need memory for gradients. So gptmini does not use these functions.
"""

from collections.abc import Mapping

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from gptmini.checkpoint import WEIGHTS_PREFIX
from gptmini.optim import OTHER
from gptmini.training.devices import distributed

Moments = Mapping[str, dict[str, Tensor]]


def gather_optimizer_state(optimizer: Optimizer, parameters: Mapping[str, Parameter]) -> Moments:
    """Return the full optimizer state on the first process, in the form of a checkpoint.

    Under FSDP2, every process must call this function.
    """
    moments = {}
    for name, parameter in parameters.items():
        if parameter in optimizer.state:  # a parameter has no state before its first step
            state = distributed.gather_on_first(optimizer.state[parameter])
            moments[f"{WEIGHTS_PREFIX}{name}"] = state
    return moments


def use_averages(weights: dict[str, Tensor], moments: Moments) -> None:
    """Exchange the weights of a checkpoint with their averages in its optimizer state, if it has averages."""
    for name, state in moments.items():
        if OTHER in state:
            weights[name], state[OTHER] = state[OTHER], weights[name]


def restore_optimizer_state(
    moments: Moments, optimizer: Optimizer, parameters: Mapping[str, Parameter]
) -> None:
    """Load the optimizer state of a checkpoint into an optimizer. Under FSDP2, load only the shard of this process."""
    names = {parameter: f"{WEIGHTS_PREFIX}{name}" for name, parameter in parameters.items()}
    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbered: dict[int, dict[str, Tensor]] = {}
    for number, parameter in enumerate(ordered):
        state = moments.get(names[parameter])
        if state is not None:
            numbered[number] = {
                moment: distributed.shard_like(tensor, parameter)
                for moment, tensor in state.items()
            }

    # Restore only the state of each parameter. The settings in param_groups come from the configuration.
    settings = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": numbered, "param_groups": settings})
