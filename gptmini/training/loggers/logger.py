"""How callbacks reach the loggers of a run, and the logger that every run has, which writes metrics.jsonl.

Scalars go to every logger; samples, tables and images to loggers that can take them.
"""

import os
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import lightning as L
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from gptmini.files import flush_file, naming, replacing
from gptmini.runs.metrics import FILE, PICTURES, STEP, TIME, line_of

# What a run logs at a step, by tag: a number, a list of texts, the rows of a table, or the bytes of a PNG file.
Entries = Mapping[str, Any]


class RunLogger(Logger):
    """A logger that takes samples, tables and images too, and writes straight into a run's folder.

    A class says in write() how it writes. A logger of another library may have methods of these names with other
    arguments, as log_image of Weights & Biases, and is given scalars alone.
    """

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


class MetricsLogger(RunLogger):
    """Writes a line of metrics.jsonl for each time that a run logs something; see gptmini/runs/metrics.py.

    What is logged while the disk is full is lost, and the run goes on.
    """

    def write(self, step: int, entries: Entries) -> None:
        """Append a line; an image becomes a file in the folder pictures/, which the line names."""
        named = {}
        for tag, value in entries.items():
            named[tag] = value
            if isinstance(value, bytes):
                plain_tag = re.sub(r"[^\w.-]", "_", tag)
                name = f"{plain_tag}-{step}.png"
                named[tag] = {"picture": name}
                path = self.folder / PICTURES / name
                path.parent.mkdir(exist_ok=True)
                with replacing(path) as file:
                    file.write(value)

        # A user's metric may be called step or time too.
        own = {STEP: step, TIME: round(time.time(), 3)}
        self._append(line_of({**own, **named, **own}))
        self.has_failed = False

    def flush(self) -> None:
        """Wait until all lines are on the disk."""
        path = self.folder / FILE
        if path.is_file():
            # Windows flushes only files that are open for writing.
            with path.open("ab") as file, naming(path):
                flush_file(file)

    def _append(self, line: bytes) -> None:
        """Append a line; where the disk takes only a part of it, nothing is appended."""
        path = self.folder / FILE
        with naming(path), path.open("ab", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            try:
                while line:
                    line = line[file.write(line) :]
            except OSError:
                os.truncate(path, size)
                raise


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
