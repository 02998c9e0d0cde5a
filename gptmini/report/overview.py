"""What a table of runs says of each: what was changed, how far it is, and how well it does."""

import math
from dataclasses import dataclass
from pathlib import Path

from gptmini.key_table import keys_with
from gptmini.runs import is_trained, read_config, read_lines, read_state
from gptmini.runs.metrics import STEP


@dataclass(frozen=True, kw_only=True)
class Overview:
    """One run in a table of runs."""

    folder: Path
    state: str  # running, done, ended, pruned, stopped, failed, killed or damaged
    changed: list[str]  # what was typed for it, KEY=VALUE each
    by: str | None = None  # what ended, stopped or failed it
    step: int | None = None  # optimizer steps done
    max_steps: int | None = None
    loss: float | None = None  # lowest validation loss, in nats per token
    bits_per_byte: float | None = None  # at the same validation
    reason: str | None = None  # why it cannot be read; None if it can


def overview_of(folder: Path) -> Overview:
    """Read what there is to say of a run, whatever state it is in."""
    try:
        return _overview_of(folder)
    except (OSError, ValueError, LookupError, TypeError) as error:
        return Overview(folder=folder, state="damaged", changed=[], reason=str(error))


def _overview_of(folder: Path) -> Overview:
    """What there is to say of a run; UserError for one whose files are damaged."""
    config, typed = read_config(folder)
    validations = [
        (float(line["val/loss"]), float(line.get("val/bits_per_byte", "nan")))
        for line in read_lines(folder, having="val/loss")
    ]
    finite = [pair for pair in validations if math.isfinite(pair[0])]
    loss, bits_per_byte = min(finite, default=(None, None))

    written = read_state(folder)
    step = None if written is None else written.step
    by = None
    if is_trained(folder):
        state = "running"
        # A run logs more often than it saves a checkpoint.
        step = max((line[STEP] for line in read_lines(folder)), default=step)
    elif written is None or written.state == "running":
        # Its step is that of its newest checkpoint: the steps after it are lost.
        state = "killed"
    else:
        state = written.state
        by = written.by

    return Overview(
        folder=folder,
        state=state,
        by=by,
        changed=[
            line
            for line in typed
            if line.lstrip("+").partition("=")[0] not in keys_with("unreported")
        ],
        step=step,
        max_steps=config["trainer"]["max_steps"],
        loss=loss,
        bits_per_byte=bits_per_byte,
    )
