"""Training with Lightning. This package contains the module, the data module, callbacks, loggers and checkpoints.

No other package imports Lightning. Configurations and users name a class without its file, as gptmini.training.Scalars.
Such a name is imported at its first use, so gptmini can check settings without importing torch and Lightning.
"""

from importlib import import_module

from gptmini.training.lazy_torchmetrics import defer_torchmetrics

defer_torchmetrics()  # before any file of this package imports Lightning

_HOMES = {
    "EarlyStopping": "gptmini.training.callbacks.early_stopping",
    "EventLogger": "gptmini.training.loggers.tensorboard",
    "GPTModule": "gptmini.training.module",
    "Pictures": "gptmini.training.callbacks.pictures",
    "Pruning": "gptmini.training.callbacks.pruning",
    "RunCheckpoints": "gptmini.training.callbacks.checkpoints",
    "Samples": "gptmini.training.callbacks.samples",
    "Scalars": "gptmini.training.callbacks.scalars",
    "TokenDataModule": "gptmini.training.datamodule",
    "TrainerSettings": "gptmini.training.trainer_settings",
    "build_trainer": "gptmini.training.trainer",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
