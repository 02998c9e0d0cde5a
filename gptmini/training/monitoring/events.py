"""TensorBoard's event files of a run; while the disk is full points are missing, but the run goes on."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.tensorboard import SummaryWriter

from gptmini.report.tags import BEGINNING, COMPARED, LAYOUT

if TYPE_CHECKING:
    # Protobuf makes this class while the module is imported, where no type checker sees it.
    # pyrefly: ignore[missing-module-attribute]
    from tensorboard.compat.proto.summary_pb2 import Summary

RETRY_SECONDS = 60.0  # between two attempts to write events to a full disk
SPECIAL = "\\`*_[]<>&|~\r\n"  # characters that Markdown or HTML would not show as themselves
RULE = "\n\n---\n\n"  # Markdown's horizontal line, between two samples

# TensorBoard keeps numbers as float64, which holds every whole number below this one.
LARGEST_NUMBER = 2**53


class EventLogger(TensorBoardLogger):
    """Writes TensorBoard events straight into the run folder, and nothing else there.

    Events that are handed over while the disk is full are lost, but for those that a run writes only once, such as its
    configuration: these are written when the disk has room again.
    """

    def __init__(
        self,
        save_dir: str,
        *,
        purge_step: int | None = None,
        on_error: Callable[[OSError], None] | None = None,
    ) -> None:
        """Open no file yet; the first event does. purge_step and on_error may be set as attributes until then.

        Args:
            save_dir: folder of the event file.
            purge_step: TensorBoard hides events of this step and later ones in the folder's earlier files; None to hide
                nothing.
            on_error: is told of an OSError; the next attempt to write is made RETRY_SECONDS later. None to raise the
                error instead.
        """
        super().__init__(
            save_dir,
            name="",
            version="",
            default_hp_metric=False,
            purge_step=purge_step,
        )
        self.on_error = on_error
        self._try_again = 0.0  # time.monotonic() before which nothing is written
        self._owed: list[Callable[[], None]] = []  # writes an event that may not be on the disk yet
        self._n_handed = 0  # how many of the owed events the open file was given

    @property
    def purge_step(self) -> int | None:
        """From which step on TensorBoard hides events of earlier files; None to hide nothing."""
        return self._kwargs[
            "purge_step"
        ]  # which Lightning's logger gives to the writer that it opens

    @purge_step.setter
    def purge_step(self, step: int | None) -> None:
        self._kwargs["purge_step"] = step

    @property
    def experiment(self) -> None:
        """None: Lightning would open the file before training, outside of the methods here that handle errors."""

    @property
    def _writer(self) -> SummaryWriter:
        """The open event file; opens one if there is none."""
        return super().experiment

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Write scalars, by tag; unlike in Lightning's method, an OSError is not taken for a value of a wrong type."""

        def write() -> None:
            for tag, value in metrics.items():
                self._writer.add_scalar(tag, value, step)

        self._attempt(write)

    @rank_zero_only
    def log_samples(self, texts: Sequence[str], step: int) -> None:
        """Write texts one below the other, each as a block of code, which TensorBoard does not reformat."""
        blocks = [_code_block(text) for text in texts]
        self._attempt(lambda: self._writer.add_text("samples", RULE.join(blocks), step))

    @rank_zero_only
    def log_table(self, tag: str, rows: Sequence[Sequence[str]], step: int) -> None:
        """Write a table as text; the first row holds the headings."""
        heading, *others = [_table_line(row) for row in rows]
        separator = "|---" * len(rows[0]) + "|"
        table = "\n".join([heading, separator, *others])

        written_once = tag.startswith(BEGINNING)
        self._attempt(lambda: self._writer.add_text(tag, table, step), once=written_once)

    @rank_zero_only
    def log_image(self, tag: str, image: np.ndarray, step: int) -> None:
        """Write an image, uint8 (height, width, 3)."""
        self._attempt(lambda: self._writer.add_image(tag, image, step, dataformats="HWC"))

    @rank_zero_only
    def log_layout(self) -> None:
        """Write which charts TensorBoard's page Custom Scalars opens with."""
        layout: dict[str, dict[str, list]] = {}
        for category, charts in LAYOUT.items():
            layout[category] = {}
            for title, patterns in charts.items():
                layout[category][title] = ["Multiline", patterns]
        self._attempt(lambda: self._writer.add_custom_scalars(layout), once=True)

    @rank_zero_only
    def log_comparison(
        self, values: dict[str, object], changed: Sequence[str], others: Sequence[str]
    ) -> None:
        """Enter the run into TensorBoard's page HParams.

        Args:
            values: every value of the run, by dotted key.
            changed: keys that the user changed, which are the first columns of the page.
            others: keys of the further columns.
        """
        plain = {key: _hparams_value(value) for key, value in values.items()}
        columns, entry = _hparams_summaries(plain, changed, others)

        def write() -> None:
            file = self._writer.file_writer
            assert file is not None  # a writer has a file until it is closed
            file.add_summary(columns, 0)
            file.add_summary(entry, 0)

        self._attempt(write, once=True)

    @rank_zero_only
    def save(self) -> None:
        """Flush the events to disk; Lightning's method would write hparams.yaml too, which repeats config.yaml."""
        self._attempt(self._flush)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Flush and close the event file, if one is open."""
        writer = self._experiment
        if writer is not None:
            self._attempt(self._flush)
            self._attempt(writer.close)

    def _flush(self) -> None:
        """Wait until all events are on the disk."""
        self._writer.flush()
        for path in self._event_files():
            with path.open("rb") as file:
                os.fsync(file.fileno())

        self._owed = []
        self._n_handed = 0

    def _attempt(self, write: Callable[[], None], *, once: bool = False) -> None:
        """Call write, which hands events to the file, unless the disk was full a moment ago.

        With once, write is owed until a flush succeeds, and is called again for a new file after an error. Without
        on_error the OSError of a full disk is raised.
        """
        if once:
            self._owed.append(write)
        if time.monotonic() < self._try_again:
            return

        try:
            self._hand_over_owed()
            if not once:
                write()
            # The run's first file tells TensorBoard what to hide; said again, it would hide events of this run.
            self.purge_step = None
        except OSError as error:
            if self.on_error is None:
                raise
            self._give_up_file()
            self.on_error(error)

    def _hand_over_owed(self) -> None:
        """Write the owed events that the open file was not given yet."""
        for write in self._owed[self._n_handed :]:
            write()
            self._n_handed += 1

    def _give_up_file(self) -> None:
        """Leave a file that cannot be written, and try again in a new one after RETRY_SECONDS."""
        self._experiment = None
        self._n_handed = 0
        self._try_again = time.monotonic() + RETRY_SECONDS
        for path in self._event_files():
            if path.stat().st_size == 0:
                path.unlink()

    def _event_files(self) -> Iterator[Path]:
        return Path(self.log_dir).glob("events.out.tfevents.*")


def _hparams_value(value: object) -> float | str:
    """A value as TensorBoard's page HParams takes it: a number or a text; True, None and lists become texts."""
    if type(value) is int and abs(value) < LARGEST_NUMBER:
        return value
    if type(value) is float or type(value) is str:
        return value
    return str(value)


def _hparams_summaries(
    values: dict[str, float | str], changed: Sequence[str], others: Sequence[str]
) -> "tuple[Summary, Summary]":
    """The columns of TensorBoard's page HParams, and a run's entry in them.

    TensorBoard takes the columns from one of the runs that it compares, and the entries from each run.
    """
    # Protobuf makes this class while the module is imported, where no type checker sees it.
    # pyrefly: ignore[missing-module-attribute]
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
    from torch.utils.tensorboard.summary import hparams

    _, entry, _ = hparams(values, {})
    shown = {key: values[key] for key in (*changed, *others)}
    columns, _, _ = hparams(shown, dict.fromkeys(COMPARED))

    plugin = columns.value[0].metadata.plugin_data
    content = HParamsPluginData.FromString(plugin.content)
    for info in content.experiment.hparam_infos:
        info.differs = info.name in changed  # the page shows these columns first
    plugin.content = content.SerializeToString()
    return columns, entry


def _code_block(text: str) -> str:
    """Text as a block of code in Markdown, by an indent of four spaces."""
    return "\n".join("    " + line for line in text.splitlines())


def _table_line(cells: Sequence[str]) -> str:
    """A row of a Markdown table whose cells show their texts as they are."""
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(text: str) -> str:
    """Text with special characters of Markdown and HTML as numeric entities."""
    escaped = ""
    for character in str(text):
        escaped += f"&#{ord(character)};" if character in SPECIAL else character
    return escaped
