"""TensorBoard's event files of a run, read again: its curves, what was typed for it, what a resumed run replaces."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gptmini.checks import UserError
from gptmini.files import flush_file, temporary_beside
from gptmini.report.tags import BEGINNING, VALIDATION


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every curve of a run as (step, value) points, by tag."""
    read = read_events(folder, images=1)
    return {tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def read_overrides(folder: Path) -> list[str]:
    """What was typed for a run so far, KEY=VALUE each, from its entry in HParams; nothing if it has none."""
    from google.protobuf.message import DecodeError
    from tensorboard.plugins.hparams.error import HParamsError
    from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG, parse_session_start_info_plugin_data

    entries = read_events(folder, images=1).summary_metadata
    if SESSION_START_INFO_TAG not in entries:
        return []

    try:
        start = parse_session_start_info_plugin_data(entries[SESSION_START_INFO_TAG].plugin_data.content)
    except (DecodeError, HParamsError):
        raise UserError(f"HParams in {folder} hold what TensorBoard never wrote; move its events away") from None

    typed = start.hparams["overrides"].string_value
    try:
        return shlex.split(typed)
    except ValueError:
        raise UserError(f"HParams in {folder} must hold what was typed, got {typed!r}; move its events away") from None


def read_events(folder: Path, *, images: int = 0):
    """TensorBoard's own EventAccumulator over all events of a run; of each image the newest so many, 0 for all."""
    from google.protobuf.message import DecodeError
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    try:
        return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "images": images}).Reload()
    except DecodeError:
        raise UserError(f"an event file in {folder} holds what TensorBoard never wrote; move it away") from None


@contextmanager
def dropping_later_events(folder: Path, step: int, *, validated: bool) -> Iterator[None]:
    """Take what a resumed run logs again out of the event files: what it is, and all after a step.

    The step's validation too, if it was not validated.

    The files are written before the block and take their places after it, so that an error leaves everything as it was.
    TensorBoard's own answer, a purge_step in the next file, hides scalars and images but not texts.
    """
    from google.protobuf.message import DecodeError
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    def superseded(record: bytes) -> bool:
        try:
            event = Event.FromString(record)
        except DecodeError:  # no event at all
            return True
        tags = [value.tag for value in event.summary.value]
        again = any(tag.startswith(BEGINNING) for tag in tags)
        validation = any(tag.startswith(VALIDATION) for tag in tags)
        return again or event.step > step or (event.step == step and validation and not validated)

    replacements = {path: temporary_beside(path) for path in folder.glob("events.out.tfevents.*")}
    try:
        for path, temporary in replacements.items():
            records = RawEventFileLoader(str(path)).Load()  # to where a killed process ended, even amid a record
            with temporary.open("wb") as file:
                writer = RecordWriter(file)
                for record in records:
                    if not superseded(record):
                        writer.write(record)
                flush_file(file)
        yield
        for path, temporary in replacements.items():
            if temporary.stat().st_size != path.stat().st_size:
                temporary.replace(path)
    finally:
        for temporary in replacements.values():
            temporary.unlink(missing_ok=True)
