"""Optimizers and their parameter groups, and learning rate schedules. A schedule is a function of the step.

Each name of this package is imported at its first use. So gptmini can check settings without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gptmini.optim.groups import set_learning_rate as set_learning_rate
    from gptmini.optim.groups import skip_step_if as skip_step_if
    from gptmini.optim.optimizers import AdamWSettings as AdamWSettings
    from gptmini.optim.optimizers import MuonSettings as MuonSettings
    from gptmini.optim.schedules import CosineSchedule as CosineSchedule
    from gptmini.optim.schedules import LinearSchedule as LinearSchedule
    from gptmini.optim.schedules import TrapezoidSchedule as TrapezoidSchedule

_HOMES = {
    "AdamWSettings": "gptmini.optim.optimizers",
    "CosineSchedule": "gptmini.optim.schedules",
    "LinearSchedule": "gptmini.optim.schedules",
    "MuonSettings": "gptmini.optim.optimizers",
    "TrapezoidSchedule": "gptmini.optim.schedules",
    "skip_step_if": "gptmini.optim.groups",
    "set_learning_rate": "gptmini.optim.groups",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
