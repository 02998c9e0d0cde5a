"""Training with Lightning: module, data, callbacks, loggers, checkpoints. The only room that imports lightning."""

from gptmini.training.checkpointing import AtomicCheckpointIO, RunCheckpoints
from gptmini.training.datamodule import TokenDataModule
from gptmini.training.module import GPTModule
from gptmini.training.monitoring.console import ConsoleLogger
from gptmini.training.monitoring.contention import ContentionNotice
from gptmini.training.monitoring.events import EventLogger
from gptmini.training.monitoring.metrics import MetricsLogger
from gptmini.training.monitoring.overfitting import OverfittingNotice
from gptmini.training.monitoring.pictures import Pictures
from gptmini.training.monitoring.samples import Samples
from gptmini.training.monitoring.scalars import Scalars
from gptmini.training.settings import TrainerSettings
from gptmini.training.stopping import Stopping
from gptmini.training.trainer import assemble, build_trainer

__all__ = [
    "AtomicCheckpointIO",
    "ConsoleLogger",
    "ContentionNotice",
    "EventLogger",
    "GPTModule",
    "MetricsLogger",
    "OverfittingNotice",
    "Pictures",
    "RunCheckpoints",
    "Samples",
    "Scalars",
    "Stopping",
    "TokenDataModule",
    "TrainerSettings",
    "assemble",
    "build_trainer",
]
