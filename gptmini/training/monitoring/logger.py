"""What callbacks hand to the loggers of a run: scalars to every one, the rest to those that have a method for it."""

from collections.abc import Iterator

import lightning as L
from lightning.pytorch.loggers.logger import Logger


def log(trainer: L.Trainer, metrics: dict[str, float], *, step: int | None = None) -> None:
    """Send scalars to every logger, at an optimizer step; None for the newest."""
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=trainer.global_step if step is None else step)


def say(trainer: L.Trainer, line: str) -> None:
    """Tell the person who watches."""
    for logger in takers(trainer, "say"):
        logger.say(line)


def takers(trainer: L.Trainer, method: str) -> Iterator[Logger]:
    """The trainer's loggers that have a method."""
    return (logger for logger in trainer.loggers if hasattr(logger, method))
