"""How callbacks reach the loggers of a run: scalars go to every logger, the rest to loggers that can take it."""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import lightning as L
import numpy as np


@runtime_checkable
class RunLogger(Protocol):
    """A logger that takes samples, tables and images, as EventLogger does; beyond Lightning's own Logger.

    A logger of another library may have one of these names with other arguments, as log_image of Weights & Biases: only
    a logger that has all three is given anything.
    """

    def log_samples(self, texts: Sequence[str], step: int) -> None:
        """Take texts that the model wrote after an optimizer step."""
        ...

    def log_table(self, tag: str, rows: Sequence[Sequence[str]], step: int) -> None:
        """Take a table; the first row holds the headings."""
        ...

    def log_image(self, tag: str, image: np.ndarray, step: int) -> None:
        """Take an image, uint8 (height, width, 3)."""
        ...


@runtime_checkable
class Speaker(Protocol):
    """A logger that speaks to the person who watches the run, as ConsoleLogger does."""

    def say(self, line: str) -> None:
        """Show a line."""
        ...


def log(trainer: L.Trainer, metrics: dict[str, float], *, step: int | None = None) -> None:
    """Send scalars, by tag, to every logger of a run, at an optimizer step; None for the newest step."""
    if step is None:
        step = trainer.global_step
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=step)


def say(trainer: L.Trainer, line: str) -> None:
    """Tell the person who watches the run."""
    for logger in trainer.loggers:
        if isinstance(logger, Speaker):
            logger.say(line)


def run_loggers(trainer: L.Trainer) -> Iterator[RunLogger]:
    """Yield the loggers of a run that take samples, tables and images."""
    for logger in trainer.loggers:
        if isinstance(logger, RunLogger):
            yield logger
