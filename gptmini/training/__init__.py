"""Training with Lightning. This package contains the module, the data module, callbacks, loggers and checkpoints.

No other package imports Lightning. Each name of this package is imported at its first use. So gptmini can check
settings without importing torch and Lightning.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from gptmini.training.lazy_torchmetrics import defer_torchmetrics

if TYPE_CHECKING:
    from gptmini.training.callbacks.checkpoints import RunCheckpoints
    from gptmini.training.callbacks.early_stopping import EarlyStopping
    from gptmini.training.callbacks.pictures import Pictures
    from gptmini.training.callbacks.pruning import Pruning
    from gptmini.training.callbacks.samples import Samples
    from gptmini.training.callbacks.scalars import Scalars
    from gptmini.training.datamodule import TokenDataModule
    from gptmini.training.loggers.console import ConsoleLogger
    from gptmini.training.loggers.logger import MetricsLogger
    from gptmini.training.loggers.tensorboard import EventLogger
    from gptmini.training.module import GPTModule
    from gptmini.training.stopping import Stopping
    from gptmini.training.trainer import build_trainer
    from gptmini.training.trainer_settings import TrainerSettings

defer_torchmetrics()  # before any file of this package imports Lightning

_HOMES = {
    "ConsoleLogger": "gptmini.training.loggers.console",
    "EarlyStopping": "gptmini.training.callbacks.early_stopping",
    "EventLogger": "gptmini.training.loggers.tensorboard",
    "GPTModule": "gptmini.training.module",
    "MetricsLogger": "gptmini.training.loggers.logger",
    "Pictures": "gptmini.training.callbacks.pictures",
    "Pruning": "gptmini.training.callbacks.pruning",
    "RunCheckpoints": "gptmini.training.callbacks.checkpoints",
    "Samples": "gptmini.training.callbacks.samples",
    "Scalars": "gptmini.training.callbacks.scalars",
    "Stopping": "gptmini.training.stopping",
    "TokenDataModule": "gptmini.training.datamodule",
    "TrainerSettings": "gptmini.training.trainer_settings",
    "build_trainer": "gptmini.training.trainer",
}
__all__ = [
    "ConsoleLogger",
    "EarlyStopping",
    "EventLogger",
    "GPTModule",
    "MetricsLogger",
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
