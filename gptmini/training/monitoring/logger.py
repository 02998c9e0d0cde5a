"""How callbacks reach the loggers of a run: scalars go to every logger, the rest to loggers that can take it."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import lightning as L
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

# What a run logs at a step, by tag: a number, a list of texts, the rows of a table, or the bytes of a PNG file.
Entries = Mapping[str, Any]


@runtime_checkable
class RunLogger(Protocol):
    """A logger that takes samples, tables and images, as MetricsLogger does; beyond Lightning's own Logger.

    A logger of another library may have one of these names with other arguments, as log_image of Weights & Biases: only
    a logger that has all three is given anything.
    """

    def log_samples(self, texts: Sequence[str], step: int) -> None:
        """Take texts that the model wrote after an optimizer step."""
        ...

    def log_table(self, tag: str, rows: Sequence[Sequence[str]], step: int) -> None:
        """Take a table; the first row holds the headings."""
        ...

    def log_image(self, tag: str, png: bytes, step: int) -> None:
        """Take an image, the bytes of a PNG file."""
        ...


class FolderLogger(Logger):
    """A logger that writes straight into a run's folder. A class says in write() how."""

    def __init__(
        self, save_dir: str | Path, *, on_error: Callable[[OSError], None] | None = None
    ) -> None:
        """Write nothing yet.

        Args:
            save_dir: the run's folder.
            on_error: is told once of an OSError, and the run goes on; None to raise each OSError. May be set later.
        """
        super().__init__()
        self.folder = Path(save_dir)
        self.on_error = on_error
        self.has_failed = False  # whether an OSError was told

    @abstractmethod
    def write(self, step: int, entries: Entries) -> None:
        """Write what was logged at an optimizer step, by tag."""

    @abstractmethod
    def flush(self) -> None:
        """Hand what was written to the disk."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write scalars, by tag. Scalars without a step, as a callback of a user may log them, are left out."""
        if step is None:
            return
        # A user's callback may log a tensor or a number of numpy's.
        numbers = {
            tag: value.item() if hasattr(value, "item") else value for tag, value in metrics.items()
        }
        self.attempt(lambda: self.write(step, numbers))

    @rank_zero_only
    def log_samples(self, texts: Sequence[str], step: int) -> None:
        """Write texts that the model wrote."""
        self.attempt(lambda: self.write(step, {"samples": list(texts)}))

    @rank_zero_only
    def log_table(self, tag: str, rows: Sequence[Sequence[str]], step: int) -> None:
        """Write a table; the first row holds the headings."""
        self.attempt(lambda: self.write(step, {tag: [list(row) for row in rows]}))

    @rank_zero_only
    def log_image(self, tag: str, png: bytes, step: int) -> None:
        """Write an image, the bytes of a PNG file."""
        self.attempt(lambda: self.write(step, {tag: png}))

    @rank_zero_only
    def save(self) -> None:
        """Hand what was written to the disk."""
        self.attempt(self.flush)

    def attempt(self, write: Callable[[], None]) -> None:
        """Call write; where it fails for the first time, tell on_error."""
        try:
            write()
        except OSError as error:
            if self.on_error is None:
                raise
            if not self.has_failed:
                self.on_error(error)
            self.has_failed = True

    @property
    def save_dir(self) -> str:
        """The run's folder, below which Lightning's own callbacks put their files, in save_dir/name/version."""
        return str(self.folder)

    @property
    def name(self) -> str:
        """No folder of its own."""
        return ""

    @property
    def version(self) -> str:
        """No folder of its own."""
        return ""

    def log_hyperparams(self, *args: object, **kwargs: object) -> None:
        """Write nothing: the run's config.yaml holds every value."""


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


def run_loggers(trainer: L.Trainer) -> list[RunLogger]:
    """The loggers of a run that take samples, tables and images; every rank has the same loggers."""
    return [logger for logger in trainer.loggers if isinstance(logger, RunLogger)]
