"""TensorBoard's event files of a run; while the disk is full points are missing, but the run goes on."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.tensorboard import SummaryWriter

from gptmini.report.tags import BEGINNING, COMPARED, LAYOUT

RETRY_SECONDS = 60.0  # between two attempts to write events to a disk that is full
LARGEST_NUMBER = 2**53  # TensorBoard keeps numbers as float64
SPECIAL = "\\`*_[]<>&|~\r\n"  # what Markdown or HTML would read as more than itself


class EventLogger(TensorBoardLogger):
    """TensorBoard events straight in the run folder, and nothing else there.

    When they cannot be written on_error is told, and a minute later it is tried again; without it OSError is raised.
    """

    def __init__(
        self, save_dir: str, *, purge_step: int | None = None, on_error: Callable[[OSError], None] | None = None
    ) -> None:
        """Write to the folder save_dir; events there from purge_step on are superseded by those that follow."""
        super().__init__(save_dir, name="", version="", default_hp_metric=False, purge_step=purge_step)
        self._on_error = on_error
        self._try_again = 0.0  # time.monotonic() before which the disk is taken for full
        self._owed: list[Callable[[], None]] = []  # what is written only once and not known to be on the disk
        self._handed = 0  # how many of them this file has

    @property
    def experiment(self) -> None:
        """Lightning looks at it before it trains; the file is opened when something is written, where errors count."""

    @property
    def _writer(self) -> SummaryWriter:
        return super().experiment

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Add scalars, not through Lightning, which takes every error for a value that cannot be logged."""

        def add() -> None:
            for tag, value in metrics.items():
                self._writer.add_scalar(tag, value, step)

        self._attempt(add)

    @rank_zero_only
    def log_samples(self, texts: Sequence[str], step: int) -> None:
        """Add texts, each as a block that TensorBoard does not reformat."""
        blocks = ("\n".join("    " + line for line in text.splitlines()) for text in texts)  # Markdown's code block
        self._attempt(lambda: self._writer.add_text("samples", "\n\n---\n\n".join(blocks), step))

    @rank_zero_only
    def log_table(self, tag: str, rows: Sequence[Sequence[str]], step: int) -> None:
        """Add a table whose first row are its headings."""
        heading, *others = ("| " + " | ".join(map(_escaped, row)) + " |" for row in rows)
        table = "\n".join((heading, "|---" * len(rows[0]) + "|", *others))
        self._attempt(lambda: self._writer.add_text(tag, table, step), once=tag.startswith(BEGINNING))

    @rank_zero_only
    def log_image(self, tag: str, image: np.ndarray, step: int) -> None:
        """Add an image, uint8 (height, width, 3)."""
        self._attempt(lambda: self._writer.add_image(tag, image, step, dataformats="HWC"))

    @rank_zero_only
    def log_layout(self) -> None:
        """Say which charts the page Custom Scalars opens with."""
        charts = {
            category: {name: ["Multiline", tags] for name, tags in named.items()} for category, named in LAYOUT.items()
        }
        self._attempt(lambda: self._writer.add_custom_scalars(charts), once=True)

    @rank_zero_only
    def log_comparison(self, values: dict[str, object], changed: Sequence[str], others: Sequence[str]) -> None:
        """Enter the run into the page HParams: all its values, and as columns what was changed, then the others.

        TensorBoard takes the columns from one of the runs that it compares, and their contents from each.
        """
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
        from torch.utils.tensorboard.summary import hparams

        plain = {key: value if type(value) in (float, str) else str(value) for key, value in values.items()}
        plain |= {key: value for key, value in values.items() if type(value) is int and abs(value) < LARGEST_NUMBER}
        columns, _, _ = hparams({key: plain[key] for key in (*changed, *others)}, dict.fromkeys(COMPARED))
        _, start, _ = hparams(plain, {})
        plugin = columns.value[0].metadata.plugin_data
        content = HParamsPluginData.FromString(plugin.content)
        for info in content.experiment.hparam_infos:
            info.differs = info.name in changed  # what the page shows first
        plugin.content = content.SerializeToString()

        def add() -> None:
            for summary in (columns, start):
                self._writer.file_writer.add_summary(summary, 0)

        self._attempt(add, once=True)

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
        self._writer.flush()
        for path in Path(self.log_dir).glob("events.out.tfevents.*"):
            with path.open("rb") as file:
                os.fsync(file.fileno())
        self._owed, self._handed = [], 0

    def _attempt(self, call: Callable[[], None], *, once: bool = False) -> None:
        """Write, unless the disk was full a moment ago; what is written only once is kept until it can be."""
        if once:
            self._owed.append(call)
        if time.monotonic() < self._try_again:
            return
        try:
            for owed in self._owed[self._handed :]:
                owed()
                self._handed += 1
            if not once:
                call()
            self._kwargs["purge_step"] = None  # said by the first file; another would purge what we have written
        except OSError as error:
            if self._on_error is None:
                raise
            self._experiment, self._handed, self._try_again = None, 0, time.monotonic() + RETRY_SECONDS
            for path in Path(self.log_dir).glob("events.out.tfevents.*"):
                if not path.stat().st_size:
                    path.unlink()  # the next attempt makes another
            self._on_error(error)


def _escaped(text: str) -> str:
    return "".join(f"&#{ord(character)};" if character in SPECIAL else character for character in str(text))
