"""What TensorBoard is given: under which tags, in which layout; and how it is read again.

TensorBoard orders groups by name: train, val, weights, work, and last the close looks of zoom; samples, then setup.
"""

import shlex
from pathlib import Path

LAYOUT = {  # of the page Custom Scalars: regular expressions of tags by chart, by category
    "Is it learning?": {
        "loss, nats per token": ["^train/loss$", "^val/loss$"],
        "bits per byte": ["^val/bits_per_byte$"],
        "generalisation gap: val less train loss": ["^val/gap$"],
    },
    "Is it about to diverge?": {
        "gradient norm before clipping": ["^weights/grad_norm$"],
        "share of clipped steps": ["^weights/clipped$"],
        "learning rate": ["^train/lr/"],
        "update-to-weight ratio": ["^weights/update_ratio/"],
        "weight norm": ["^weights/norm/"],
        "steps not applied": ["^train/bad_steps$"],
    },
    "How fast is it?": {
        "tokens per second": ["^work/tokens_per_second$"],
        "milliseconds of a step": ["^work/ms/"],
        "peak memory, GB": ["^work/memory_gb$"],
        "model FLOP utilisation": ["^work/mfu$"],
    },
    "How far is it?": {
        "tokens seen": ["^train/tokens$"],
        "passes over the data": ["^train/passes$"],
    },
}
COMPARED = ("val/loss", "val/bits_per_byte", "work/tokens_per_second")  # what the page HParams shows of each run
VALIDATION = ("val/", "samples", "zoom/")  # how the tags begin that a validation writes
BEGINNING = ("setup/", "_hparams_/", "custom_scalars__config__")  # of what each process of a run writes anew


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every curve of a run as (step, value) points, by tag."""
    read = read_events(folder, images=1)
    return {tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def read_overrides(folder: Path) -> list[str]:
    """What was typed for a run so far, KEY=VALUE each, from its entry in HParams; nothing if it has none."""
    from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG, parse_session_start_info_plugin_data

    entries = read_events(folder, images=1).summary_metadata
    if SESSION_START_INFO_TAG not in entries:
        return []
    start = parse_session_start_info_plugin_data(entries[SESSION_START_INFO_TAG].plugin_data.content)
    typed = start.hparams["overrides"].string_value
    try:
        return shlex.split(typed)
    except ValueError:
        raise ValueError(f"HParams in {folder} must hold what was typed, got {typed!r}; move its events away") from None


def read_events(folder: Path, *, images: int = 0):
    """TensorBoard's own EventAccumulator over all events of a run; of each image the newest so many, 0 for all."""
    from google.protobuf.message import DecodeError
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    try:
        return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "images": images}).Reload()
    except DecodeError:
        raise ValueError(f"an event file in {folder} holds what TensorBoard never wrote; move it away") from None
