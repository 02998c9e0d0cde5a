"""Write the TensorBoard event files of a run. They contain a copy of metrics.jsonl, and data for comparing runs."""

import os
import struct
from collections.abc import Sequence
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

# Protobuf creates these classes during the import, so type checkers do not see them.
# pyrefly: ignore[missing-module-attribute]
from tensorboard.compat.proto.summary_pb2 import Summary

# pyrefly: ignore[missing-module-attribute]
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch.utils.tensorboard import FileWriter
from torch.utils.tensorboard.summary import custom_scalars, hparams, text

from gptmini.report import COMPARED, LAYOUT
from gptmini.runs import STEP, TIME, Line, is_number, picture_path, tags_of
from gptmini.system.files import encodable
from gptmini.training.loggers.logger import Entries, RunLogger

# The names that TensorBoard gives to event files. They are in the run folder.
EVENT_FILES = "events.out.tfevents.*"
# Maps each character with a special meaning in Markdown or HTML to a numeric entity of HTML.
ENTITIES = str.maketrans({character: f"&#{ord(character)};" for character in "\\`*_[]<>&|~\r\n"})
RULE = "\n\n---\n\n"  # horizontal rule of Markdown; it separates two samples


class EventLogger(RunLogger):
    """A logger that writes TensorBoard events directly into the run folder.

    After a disk error, the logger writes no more events. A resumed run rewrites all events from metrics.jsonl.
    """

    topic = "events"
    problem = "cannot write TensorBoard events until the run resumes"

    _writer: FileWriter | None = None  # the first event opens it
    # Descriptor of the open run folder; None if the name of the folder is UTF-8.
    _descriptor: int | None = None

    @rank_zero_only
    def rewrite(self, lines: Sequence[Line]) -> None:
        """Rewrite the event files of a resumed run from the lines of its metrics.jsonl.

        TensorBoard's own solution, a new event file with the option purge_step, does not work. TensorBoard's default
        loader, the fast loader, ignores purge_step: it drops the later points of a tag only if the tag is logged again,
        and keeps the first HParams entry. TensorBoard's slow loader shows texts twice.
        """
        self.attempt(lambda: self._write_lines(lines))

    def _write_lines(self, lines: Sequence[Line]) -> None:
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
        """Write events with the time stamp now, in seconds since 1970. None means the current time."""
        scalars = [
            Summary.Value(tag=encodable(tag), simple_value=float(value))
            for tag, value in entries.items()
            if is_number(value)
        ]
        if scalars:
            self._add(Summary(value=scalars), step, now)
        for tag, value in entries.items():
            if isinstance(value, bytes):
                self._add(_image(tag, value), step, now)
            elif isinstance(value, list):
                is_table = any(isinstance(row, list) for row in value)
                markdown = _table(value) if is_table else _samples(value)
                self._add(text(encodable(tag), encodable(markdown)), step, now)

    @rank_zero_only
    def log_layout(self) -> None:
        """Write the chart layout of TensorBoard's Custom Scalars page."""
        layout = {
            category: {title: ["Multiline", patterns] for title, patterns in charts.items()}
            for category, charts in LAYOUT.items()
        }
        self.attempt(lambda: self._add(custom_scalars(layout), 0))

    @rank_zero_only
    def log_comparison(
        self, values: dict[str, object], changed: Sequence[str], others: Sequence[str]
    ) -> None:
        """Add the run, with values by dotted key, to TensorBoard's HParams page. The changed keys are first."""
        # TensorBoard accepts numbers and texts.
        plain: dict[str, Any] = {
            encodable(key): value if type(value) in (int, float) else encodable(str(value))
            for key, value in values.items()
        }
        columns = [encodable(key) for key in changed]
        for summary in _hparams_summaries(plain, columns, others):
            self.attempt(lambda summary=summary: self._add(summary, 0))

    def flush(self) -> None:
        """Flush all events, so that TensorBoard shows them."""
        if self._writer is not None and not self.has_failed:
            self._writer.flush()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Close the event file if it is open. A later event opens a new file."""
        if self._writer is not None and not self.has_failed:
            self.attempt(self._writer.close)
        self._writer = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _add(self, summary: Summary, step: int, now: float | None = None) -> None:
        if self.has_failed:
            return
        if self._writer is None:
            self._writer = FileWriter(self._path())
        self._writer.add_summary(summary, step, now)

    def _path(self) -> str:
        # TensorBoard's writer requires UTF-8.
        path = str(self.folder)
        if encodable(path) == path:
            return path
        # Names that are not UTF-8 exist only on Linux. Linux has a second path for each open folder.
        self._descriptor = os.open(self.folder, os.O_RDONLY)
        return f"/proc/self/fd/{self._descriptor}"


def _image(tag: str, png: bytes) -> Summary:
    # In a PNG file, width and height start at the 17th byte.
    width, height = struct.unpack(">II", png[16:24])
    image = Summary.Image(encoded_image_string=png, width=width, height=height, colorspace=4)
    return Summary(value=[Summary.Value(tag=encodable(tag), image=image)])


def _hparams_summaries(
    values: dict[str, float | str], changed: Sequence[str], others: Sequence[str]
) -> tuple[Summary, Summary]:
    """Return two summaries. One contains the columns of TensorBoard's HParams page, the other the entry of the run.

    TensorBoard reads the columns from one of the compared runs. It reads an entry from each run.
    """
    _, entry, _ = hparams(values, {})
    values_of_columns = {key: values[key] for key in (*changed, *others)}
    columns, _, _ = hparams(values_of_columns, dict.fromkeys(COMPARED))

    plugin = columns.value[0].metadata.plugin_data
    content = HParamsPluginData.FromString(plugin.content)
    for info in content.experiment.hparam_infos:
        info.differs = info.name in changed  # the page shows these columns first
    plugin.content = content.SerializeToString()
    return columns, entry


def _samples(texts: Sequence[str]) -> str:
    # In Markdown, lines that are indented by four spaces are a code block.
    blocks = ["\n".join("    " + line for line in text.splitlines()) for text in texts]
    return RULE.join(blocks)


def _table(rows: Sequence[Sequence[str]]) -> str:
    heading, *others = [
        "| " + " | ".join(str(cell).translate(ENTITIES) for cell in row) + " |" for row in rows
    ]
    separator = "|---" * len(rows[0]) + "|"
    return "\n".join([heading, separator, *others])
