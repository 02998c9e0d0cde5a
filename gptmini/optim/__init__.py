"""Optimizers and their parameter groups, and learning rate schedules. A schedule is a function of the step.

Each name of this package is imported at its first use. So gptmini can check settings without importing torch.
"""

from typing import TYPE_CHECKING

from gptmini.system.lazy import lazy_names

if TYPE_CHECKING:
    from gptmini.optim.averaging import OTHER as OTHER
    from gptmini.optim.averaging import exchange_averages as exchange_averages
    from gptmini.optim.averaging import update_average as update_average
    from gptmini.optim.groups import set_learning_rate as set_learning_rate
    from gptmini.optim.groups import skip_step_if as skip_step_if
    from gptmini.optim.muon import MuonAdamW as MuonAdamW
    from gptmini.optim.optimizers import AdamWSettings as AdamWSettings
    from gptmini.optim.optimizers import MuonSettings as MuonSettings
    from gptmini.optim.schedules import CosineSchedule as CosineSchedule
    from gptmini.optim.schedules import LinearSchedule as LinearSchedule
    from gptmini.optim.schedules import TrapezoidSchedule as TrapezoidSchedule
else:
    __getattr__ = lazy_names(__name__)
