"""TensorBoard's event files of a run: a copy of its metrics.jsonl, and what compares runs."""

import os
import struct
from collections.abc import Sequence

from lightning.pytorch.utilities import rank_zero_only

# Protobuf makes this class while the module is imported, where no type checker sees it.
# pyrefly: ignore[missing-module-attribute]
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import FileWriter
from torch.utils.tensorboard.summary import custom_scalars, hparams, text

from gptmini.files import encodable
from gptmini.report.tags import COMPARED, LAYOUT
from gptmini.runs.metrics import STEP, TIME, Line, is_number, picture_path, tags_of
from gptmini.training.loggers.logger import Entries, RunLogger

EVENT_FILES = "events.out.tfevents.*"  # TensorBoard's own names, in the run folder
# Numeric entities for the characters that Markdown or HTML would not show as themselves.
ENTITIES = str.maketrans({sign: f"&#{ord(sign)};" for sign in "\\`*_[]<>&|~\r\n"})
RULE = "\n\n---\n\n"  # Markdown's horizontal line, between two samples

# TensorBoard keeps numbers as float64, which holds every whole number below this one.
LARGEST_NUMBER = 2**53


class EventLogger(RunLogger):
    """Writes TensorBoard events straight into the run folder, and nothing else there.

    After an error of the disk nothing more is written: the curves go on in metrics.jsonl, and a resumed run writes the
    events anew.
    """

    _writer: FileWriter | None = None  # opened by the first event
    _descriptor: int | None = None  # of the open folder, if its name is not UTF-8

    @rank_zero_only
    def write_anew(self, lines: Sequence[Line]) -> None:
        """Begin the event files of a resumed run anew, with the lines of its metrics.jsonl.

        TensorBoard's own means, the purge_step of a further file, would not do: its fast loader, which is its default,
        passes over purge_step. It drops the later points of a tag only when the tag is logged again, and keeps the
        first entry in HParams. Its slow loader shows texts twice.
        """
        self.attempt(lambda: self._write_lines(lines))

    def _write_lines(self, lines: Sequence[Line]) -> None:
        """Write lines of metrics.jsonl in the place of all event files."""
        for path in self.folder.glob(EVENT_FILES):
            path.unlink()
        for line in lines:
            entries = tags_of(line)
            for tag, value in entries.items():
                path = picture_path(self.folder, value)
                if path is not None and path.is_file():
                    entries[tag] = path.read_bytes()
            self.write(line[STEP], entries, line.get(TIME))

    def write(self, step: int, entries: Entries, now: float | None = None) -> None:
        """Write events, at the time now in seconds since 1970; None for the clock's."""
        numbers = {tag: float(value) for tag, value in entries.items() if is_number(value)}
        if numbers:
            self._add(_scalars(numbers), step, now)
        for tag, value in entries.items():
            if isinstance(value, bytes):
                self._add(_image(tag, value), step, now)
            elif isinstance(value, list):
                is_table = any(isinstance(row, list) for row in value)
                shown = _table(value) if is_table else _samples(value)
                self._add(text(encodable(tag), encodable(shown)), step, now)

    @rank_zero_only
    def log_layout(self) -> None:
        """Write which charts TensorBoard's page Custom Scalars opens with."""
        layout: dict[str, dict[str, list]] = {}
        for category, charts in LAYOUT.items():
            layout[category] = {}
            for title, patterns in charts.items():
                layout[category][title] = ["Multiline", patterns]
        self.attempt(lambda: self._add(custom_scalars(layout), 0))

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
        plain = {encodable(key): _hparams_value(value) for key, value in values.items()}
        columns = [encodable(key) for key in changed]
        for summary in _hparams_summaries(plain, columns, others):
            self.attempt(lambda summary=summary: self._add(summary, 0))

    def flush(self) -> None:
        """Hand all events to the system, so that TensorBoard shows them."""
        if self._writer is not None and not self.has_failed:
            self._writer.flush()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Close the event file, if one is open; a later event opens another one."""
        if self._writer is not None and not self.has_failed:
            self.attempt(self._writer.close)
        self._writer = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _add(self, summary: Summary, step: int, now: float | None = None) -> None:
        """Add an event to the open file, unless the disk did not take one before."""
        if self.has_failed:
            return
        if self._writer is None:
            self._writer = FileWriter(self._path())
        self._writer.add_summary(summary, step, now)

    def _path(self) -> str:
        """A path of the folder in UTF-8, as TensorBoard's writer needs it."""
        path = str(self.folder)
        if encodable(path) == path:
            return path
        # Only Linux has other names, and it has a second path for each folder that is open.
        self._descriptor = os.open(self.folder, os.O_RDONLY)
        return f"/proc/self/fd/{self._descriptor}"


def _scalars(numbers: dict[str, float]) -> Summary:
    """Scalars of one step as one event."""
    values = [Summary.Value(tag=encodable(tag), simple_value=numbers[tag]) for tag in numbers]
    return Summary(value=values)


def _image(tag: str, png: bytes) -> Summary:
    """An image as an event; the header of a PNG file holds its width and height at its 17th byte."""
    width, height = struct.unpack(">II", png[16:24])
    image = Summary.Image(encoded_image_string=png, width=width, height=height, colorspace=4)
    return Summary(value=[Summary.Value(tag=encodable(tag), image=image)])


def _hparams_value(value: object) -> float | str:
    """A value as TensorBoard's page HParams takes it: a number or a text; True, None and lists become texts."""
    if type(value) is int and abs(value) < LARGEST_NUMBER:
        return value
    if type(value) is float:
        return value
    return encodable(str(value))


def _hparams_summaries(
    values: dict[str, float | str], changed: Sequence[str], others: Sequence[str]
) -> tuple[Summary, Summary]:
    """The columns of TensorBoard's page HParams, and a run's entry in them.

    TensorBoard takes the columns from one of the runs that it compares, and the entries from each run.
    """
    # Protobuf makes this class while the module is imported, where no type checker sees it.
    # pyrefly: ignore[missing-module-attribute]
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    _, entry, _ = hparams(values, {})
    shown = {key: values[key] for key in (*changed, *others)}
    columns, _, _ = hparams(shown, dict.fromkeys(COMPARED))

    plugin = columns.value[0].metadata.plugin_data
    content = HParamsPluginData.FromString(plugin.content)
    for info in content.experiment.hparam_infos:
        info.differs = info.name in changed  # the page shows these columns first
    plugin.content = content.SerializeToString()
    return columns, entry


def _samples(texts: Sequence[str]) -> str:
    """Texts one below the other in Markdown, each as a block of code, by an indent of four spaces."""
    blocks = ["\n".join("    " + line for line in text.splitlines()) for text in texts]
    return RULE.join(blocks)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown whose cells show their texts as they are."""
    heading, *others = [
        "| " + " | ".join(str(cell).translate(ENTITIES) for cell in row) + " |" for row in rows
    ]
    separator = "|---" * len(rows[0]) + "|"
    return "\n".join([heading, separator, *others])
