"""Training with Lightning: module, data, callbacks, loggers, checkpoints. The only room that imports lightning.

The names of this room load when they are first used, so that the settings are checked without torch and Lightning.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from gptmini.training.torchmetrics_later import import_later

if TYPE_CHECKING:
    from gptmini.training.checkpoints import RunCheckpoints
    from gptmini.training.datamodule import TokenDataModule
    from gptmini.training.module import GPTModule
    from gptmini.training.monitoring.console import ConsoleLogger
    from gptmini.training.monitoring.logger import MetricsLogger
    from gptmini.training.monitoring.overfitting import OverfittingNotice
    from gptmini.training.monitoring.pictures import Pictures
    from gptmini.training.monitoring.samples import Samples
    from gptmini.training.monitoring.scalars import Scalars
    from gptmini.training.monitoring.tensorboard import EventLogger
    from gptmini.training.pruning import Pruning
    from gptmini.training.stopping import Stopping
    from gptmini.training.trainer import build_trainer
    from gptmini.training.trainer_settings import TrainerSettings

import_later()  # before any file of this room imports Lightning

_HOMES = {
    "ConsoleLogger": "gptmini.training.monitoring.console",
    "EventLogger": "gptmini.training.monitoring.tensorboard",
    "GPTModule": "gptmini.training.module",
    "MetricsLogger": "gptmini.training.monitoring.logger",
    "OverfittingNotice": "gptmini.training.monitoring.overfitting",
    "Pictures": "gptmini.training.monitoring.pictures",
    "Pruning": "gptmini.training.pruning",
    "RunCheckpoints": "gptmini.training.checkpoints",
    "Samples": "gptmini.training.monitoring.samples",
    "Scalars": "gptmini.training.monitoring.scalars",
    "Stopping": "gptmini.training.stopping",
    "TokenDataModule": "gptmini.training.datamodule",
    "TrainerSettings": "gptmini.training.trainer_settings",
    "build_trainer": "gptmini.training.trainer",
}
__all__ = [
    "ConsoleLogger",
    "EventLogger",
    "GPTModule",
    "MetricsLogger",
    "OverfittingNotice",
    "Pictures",
    "Pruning",
    "RunCheckpoints",
    "Samples",
    "Scalars",
    "Stopping",
    "TokenDataModule",
    "TrainerSettings",
    "build_trainer",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
