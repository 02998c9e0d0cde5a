"""How callbacks reach the loggers of a run: scalars go to every logger, the rest to loggers with a method for it."""

from collections.abc import Iterator, Sequence
from typing import Protocol, cast

import lightning as L
import numpy as np


class RunLogger(Protocol):
    """What a logger of a run may offer beyond Lightning's own Logger: any of these methods, or none.

    Callbacks find the loggers that have a method with takers. EventLogger has all of these but say, ConsoleLogger has
    say alone.
    """

    def log_samples(self, texts: Sequence[str], step: int) -> None:
        """Take texts that the model wrote after an optimizer step."""

    def log_table(self, tag: str, rows: Sequence[Sequence[str]], step: int) -> None:
        """Take a table; the first row holds the headings."""

    def log_image(self, tag: str, image: np.ndarray, step: int) -> None:
        """Take an image, uint8 (height, width, 3)."""

    def say(self, line: str) -> None:
        """Take a line for the person who watches the run."""


def log(trainer: L.Trainer, metrics: dict[str, float], *, step: int | None = None) -> None:
    """Send scalars, by tag, to every logger of a run, at an optimizer step; None for the newest step."""
    if step is None:
        step = trainer.global_step
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=step)


def say(trainer: L.Trainer, line: str) -> None:
    """Tell the person who watches the run."""
    for logger in takers(trainer, "say"):
        logger.say(line)


def takers(trainer: L.Trainer, method: str) -> Iterator[RunLogger]:
    """Yield the loggers of a run that have a method of RunLogger, given by its name."""
    for logger in trainer.loggers:
        if hasattr(logger, method):
            yield cast(RunLogger, logger)
