"""Logging functions for callbacks, and the class MetricsLogger. In every run, MetricsLogger writes metrics.jsonl.

Every logger of a run receives scalars. Only a RunLogger receives samples, tables and images, too.
"""

import os
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from gptmini.runs import METRICS, PICTURES, STEP, TIME, line_of
from gptmini.system.files import flush_file, naming, replacing

# A dict that maps tags to the logged values of a step. A value is a number, a list of texts, the rows of a table, or
# the bytes of a PNG file.
Entries = Mapping[str, Any]


class PlainLogger(Logger):
    """A logger without a name and a version, so that the files of a run are directly in its folder."""

    @property
    def name(self) -> str:
        """An empty string."""
        return ""

    @property
    def version(self) -> str:
        """An empty string."""
        return ""

    def log_hyperparams(self, *args: object, **kwargs: object) -> None:
        """Do nothing, because the config.yaml of the run contains every value."""


class RunLogger(PlainLogger):
    """A logger that also accepts samples, tables and images, and that writes directly into a run's folder.

    Subclasses implement write() and flush(). After the first OSError, on_error receives a line for the user, and the
    run continues. If on_error is None, every OSError is raised.
    """

    topic: str  # of the line for the user
    problem: str  # the start of this line; the cause follows

    def __init__(self, save_dir: str | Path) -> None:
        super().__init__()
        self.folder = Path(save_dir)
        self.on_error: Callable[[str], None] | None = None
        self.has_failed = False  # whether on_error has received an OSError

    @abstractmethod
    def write(self, step: int, entries: Entries) -> None:
        """Write the logged values of an optimizer step. entries maps tags to values."""

    @abstractmethod
    def flush(self) -> None:
        """Flush all written data to the disk."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write scalars. metrics maps tags to scalars.

        Ignore scalars without a step. The callback of a user may log scalars without a step.
        """
        if step is None:
            return
        # The callback of a user may log a tensor or a NumPy number.
        numbers = {
            tag: value.item() if hasattr(value, "item") else value for tag, value in metrics.items()
        }
        self.attempt(lambda: self.write(step, numbers))

    @rank_zero_only
    def log_entry(self, tag: str, value: Any, step: int) -> None:
        """Write a list of text samples, the rows of a table with its headings, or the bytes of a PNG file."""
        self.attempt(lambda: self.write(step, {tag: value}))

    @rank_zero_only
    def save(self) -> None:
        """Flush all written data to the disk."""
        self.attempt(self.flush)

    def attempt(self, write: Callable[[], None]) -> None:
        """Call the function write. Report the first OSError of this logger to on_error."""
        try:
            write()
        except OSError as error:
            if self.on_error is None:
                raise
            if not self.has_failed:
                self.on_error(f"{self.problem}: {error.strerror}")
            self.has_failed = True

    @property
    def save_dir(self) -> str:
        """The run folder. Lightning's callbacks write their files to the folder save_dir/name/version."""
        return str(self.folder)


class MetricsLogger(RunLogger):
    """A logger that writes one line to metrics.jsonl for each call. gptmini/runs/metrics.py describes the format.

    While the disk is full, values that callbacks log are lost, and the run continues.
    """

    topic = "metrics"
    problem = "cannot write metrics.jsonl, so some metrics are lost"

    def write(self, step: int, entries: Entries) -> None:
        """Append a line. Write each image to a file in pictures/, and write the name of the file into the line."""
        values = dict(entries)
        for tag, value in entries.items():
            if isinstance(value, bytes):
                plain_tag = re.sub(r"[^\w.-]", "_", tag)
                name = f"{plain_tag}-{step}.png"
                values[tag] = {"picture": name}
                path = self.folder / PICTURES / name
                path.parent.mkdir(exist_ok=True)
                with replacing(path) as file:
                    file.write(value)

        # Step and time come first in a line. A user's metric with one of these names must not replace them.
        stamp = {STEP: step, TIME: round(time.time(), 3)}
        self._append(line_of({**stamp, **values, **stamp}))
        self.has_failed = False

    def flush(self) -> None:
        """Wait until all lines are on the disk."""
        path = self.folder / METRICS
        if path.is_file():
            # Windows flushes only files that are open for writing.
            with path.open("ab") as file, naming(path):
                flush_file(file)

    def _append(self, line: bytes) -> None:
        """Append a line. If this raises OSError, the file is unchanged."""
        path = self.folder / METRICS
        with naming(path), path.open("ab", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            try:
                while line:
                    line = line[file.write(line) :]
            except OSError:
                os.truncate(path, size)
                raise


def log(trainer: L.Trainer, metrics: dict[str, float], *, step: int | None = None) -> None:
    """Send scalars to every logger of a run. metrics maps tags to scalars.

    The argument step is the optimizer step. None means the latest step.
    """
    if step is None:
        step = trainer.global_step
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=step)


def print_line(trainer: L.Trainer, line: str) -> None:
    """Print a line for the user with every logger that can print lines, such as ConsoleLogger."""
    for logger in trainer.loggers:
        if hasattr(logger, "print_line"):
            logger.print_line(line)


def run_loggers(trainer: L.Trainer) -> list[RunLogger]:
    """Return the loggers of a run that accept samples, tables and images. Every rank has the same RunLoggers."""
    return [logger for logger in trainer.loggers if isinstance(logger, RunLogger)]
