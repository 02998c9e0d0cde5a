"""Training with Lightning. This package contains the module, the data module, callbacks, loggers and checkpoints.

No other package imports Lightning. Configurations and users name a class without its file, as gptmini.training.Scalars.
Such a name is imported at its first use, so gptmini can check settings without importing torch and Lightning.
"""

from typing import TYPE_CHECKING

from gptmini.system.lazy import lazy_names
from gptmini.training.lazy_torchmetrics import defer_torchmetrics

defer_torchmetrics()  # before any file of this package imports Lightning

if TYPE_CHECKING:
    from gptmini.training.callbacks.checkpoints import RunCheckpoints as RunCheckpoints
    from gptmini.training.callbacks.early_stopping import EarlyStopping as EarlyStopping
    from gptmini.training.callbacks.pictures import Pictures as Pictures
    from gptmini.training.callbacks.pruning import Pruning as Pruning
    from gptmini.training.callbacks.samples import Samples as Samples
    from gptmini.training.callbacks.scalars import Scalars as Scalars
    from gptmini.training.datamodule import TokenDataModule as TokenDataModule
    from gptmini.training.loggers.tensorboard import EventLogger as EventLogger
    from gptmini.training.module import GPTModule as GPTModule
    from gptmini.training.trainer import build_trainer as build_trainer
    from gptmini.training.trainer_settings import TrainerSettings as TrainerSettings
else:
    __getattr__ = lazy_names(__name__)
