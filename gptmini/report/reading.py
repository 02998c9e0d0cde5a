"""TensorBoard's event files of a run, read again, and rid of what a resumed run will log again."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.files import flush_file, naming, temporary_beside
from gptmini.report.tags import BEGINNING, VALIDATION
from gptmini.user_error import UserError

if TYPE_CHECKING:  # TensorBoard takes long to import, and a new run reads nothing
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

EVENT_FILES = "events.out.tfevents.*"  # TensorBoard's own names, in the run folder


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read every curve of a run, as (step, value) points by tag."""
    events = read_events(folder, images=1)
    curves = {}
    for tag in tags_of(events)["scalars"]:
        curves[tag] = [(event.step, event.value) for event in events.Scalars(tag)]
    return curves


def _event_files(folder: Path) -> list[Path]:
    """The event files of a run; UserError for one that is no file, such as a pipe that would never end."""
    paths = list(folder.glob(EVENT_FILES))
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path} must be a file of events; move it away")
    return paths


def _not_tensorboards(folder: Path) -> UserError:
    return UserError(f"an event file in {folder} holds what TensorBoard never wrote; move it away")


def read_events(folder: Path, *, images: int = 0) -> "EventAccumulator":
    """Read all events of a run with TensorBoard's own reader.

    Args:
        folder: of the run.
        images: how many of the newest images are kept under each tag; 0 for all of them.

    Raises UserError: an event file is damaged, or no file, such as a pipe that would never end.
    """
    from google.protobuf.message import DecodeError
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _event_files(folder)
    kept = {"scalars": 0, "tensors": 0, "images": images}
    try:
        return EventAccumulator(str(folder), size_guidance=kept).Reload()
    except DecodeError:
        raise _not_tensorboards(folder) from None


def tags_of(events: "EventAccumulator") -> dict[str, list[str]]:
    """Return the tags of a run's events by TensorBoard's kinds: scalars, tensors, images and others."""
    # Of a graph TensorBoard says only whether there is one.
    return {kind: tags for kind, tags in events.Tags().items() if not isinstance(tags, bool)}


@contextmanager
def dropping_later_events(folder: Path, step: int, *, validated: bool) -> Iterator[None]:
    """Remove from a run's event files what the run logs again when it is resumed at a step.

    That is every event after the step, the description of the run, and, unless validated, the validation of the step
    itself. The new files are written before the block and take the places of the old ones after it, so that an error in
    the block leaves everything as it was.

    TensorBoard's own means, a purge_step in the next file, hides scalars and images but not texts.
    """
    replacements = {path: temporary_beside(path) for path in folder.glob(EVENT_FILES)}
    try:
        for path, temporary in replacements.items():
            _copy_lasting_events(path, temporary, step=step, validated=validated)
        yield

        for path, temporary in replacements.items():
            # A copy that is as long as its file left nothing out, and the file stays.
            if temporary.stat().st_size != path.stat().st_size:
                temporary.replace(path)
    finally:
        for temporary in replacements.values():
            temporary.unlink(missing_ok=True)


def _copy_lasting_events(source: Path, target: Path, *, step: int, validated: bool) -> None:
    """Write to target the events of source that a run resumed at a step does not log again."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.summary.writer.record_writer import RecordWriter

    records = RawEventFileLoader(str(source)).Load()  # ends early where a killed process broke off
    with naming(source), target.open("xb") as file:
        writer = RecordWriter(file)
        for record in records:
            if not _is_logged_again(record, step=step, validated=validated):
                writer.write(record)
        flush_file(file)


def _is_logged_again(record: bytes, *, step: int, validated: bool) -> bool:
    """Whether a run resumed at a step logs this event again; True also for bytes that are no event."""
    from google.protobuf.message import DecodeError

    # Protobuf makes this class while the module is imported, where no type checker sees it.
    # pyrefly: ignore[missing-module-attribute]
    from tensorboard.compat.proto.event_pb2 import Event

    try:
        event = Event.FromString(record)
    except DecodeError:
        return True

    tags = [value.tag for value in event.summary.value]
    if any(tag.startswith(BEGINNING) for tag in tags):
        return True

    if event.step == step and not validated:
        return any(tag.startswith(VALIDATION) for tag in tags)
    return event.step > step
