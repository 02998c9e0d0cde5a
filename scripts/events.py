"""TensorBoard's event files of a run, which a full disk delays but does not stop."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

RETRY_SECONDS = 60.0  # between two attempts to write events to a disk that is full


class EventLogger(TensorBoardLogger):
    """TensorBoard events straight in the run folder, and nothing else there.

    When they cannot be written on_error is told, and a minute later they are tried again; without it OSError is raised.
    """

    def __init__(
        self, folder: str, *, purge_step: int | None = None, on_error: Callable[[OSError], None] | None = None
    ) -> None:
        """Write to folder; events there from purge_step on are superseded by those that follow."""
        super().__init__(folder, name="", version="", default_hp_metric=False, purge_step=purge_step)
        self._on_error, self._try_again = on_error, 0.0

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Add scalars."""
        self._attempt(lambda: super(EventLogger, self).log_metrics(metrics, step))

    @rank_zero_only
    def log_text(self, tag: str, text: str, step: int) -> None:
        """Add text as a block that TensorBoard does not reformat."""
        indented = "\n".join("    " + line for line in text.splitlines())  # Markdown's code block
        self._attempt(lambda: self.experiment.add_text(tag, indented, step))

    @rank_zero_only
    def save(self) -> None:
        """Flush the events to disk; Lightning's hparams.yaml would repeat config.yaml."""
        self._attempt(self._flush)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Flush and close."""
        if (experiment := self._experiment) is not None:
            self._attempt(self._flush)
            self._attempt(experiment.close)

    def _flush(self) -> None:
        self.experiment.flush()
        for path in Path(self.log_dir).glob("events.out.tfevents.*"):
            with path.open("rb") as file:
                os.fsync(file.fileno())

    def _attempt(self, call: Callable[[], None]) -> None:
        if time.monotonic() < self._try_again:
            return
        try:
            call()
            self._kwargs["purge_step"] = None  # said by the first file; another would purge what we have written
        except OSError as error:
            if self._on_error is None:
                raise
            self._experiment, self._try_again = None, time.monotonic() + RETRY_SECONDS
            self._on_error(error)
