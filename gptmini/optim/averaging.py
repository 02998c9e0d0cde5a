"""An exponential moving average of the weights, which generalises better than the weights of any single step.

The optimizer's state of each parameter has a second copy of it, OTHER. During a step, the parameters are the weights
that are trained, and OTHER is their average. During a validation, they are exchanged. In a checkpoint, the model is the
average, and OTHER in the optimizer's state holds the weights to train on with.

Source: Polyak and Juditsky 1992. The rate of the first steps is that of TensorFlow's ExponentialMovingAverage.
"""

import torch

OTHER = "other_weights"


@torch.no_grad()
def update_average(optimizer: torch.optim.Optimizer, *, step: int, ema_steps: int) -> None:
    """Move the average of each parameter towards its weights, after optimizer step number `step`, counted from 0.

    The average covers about the last ema_steps steps. It covers fewer steps at first, so that the initial weights
    are soon forgotten.
    """
    rate = max(1 / ema_steps, 9 / (step + 10))

    for parameter, state in optimizer.state.items():
        if OTHER not in state:
            state[OTHER] = parameter.detach().clone()

    averages = [state[OTHER] for state in optimizer.state.values()]
    torch._foreach_lerp_(averages, list(optimizer.state), rate)


@torch.no_grad()
def exchange_averages(optimizer: torch.optim.Optimizer) -> None:
    """Exchange each parameter with its average, if it has one."""
    for parameter, state in optimizer.state.items():
        if OTHER in state:
            weights = parameter.clone()
            parameter.copy_(state[OTHER])
            state[OTHER].copy_(weights)
