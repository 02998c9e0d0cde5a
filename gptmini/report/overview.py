"""What a table of runs says of each: what was changed, how far it is, and how well it does."""

import math
from dataclasses import dataclass
from pathlib import Path

from gptmini.report.scalar_table import FILE, read_rows
from gptmini.runs import is_trained, read_config

# Keys that say where a run lies, how it is shown, and how many threads it has, which a sweep says of each of its runs;
# they change nothing that is trained.
UNTOLD = ("name", "runs_dir", "data_dir", "console", "resume", "folder", "trainer.threads")


@dataclass(frozen=True, kw_only=True)
class Overview:
    """One run in a table of runs."""

    folder: Path
    state: str  # running, done, stopped or damaged
    changed: list[str]  # what was typed for it, KEY=VALUE each
    step: int | None = None  # newest logged optimizer step
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
    max_steps = config["trainer"]["max_steps"]
    step = None
    best: tuple[float, float] | None = None
    if (folder / FILE).is_file():
        _, rows = read_rows(folder / FILE)
        step = max(rows, default=None)
        validations = [
            (float(row["val/loss"]), float(row.get("val/bits_per_byte", "nan")))
            for row in rows.values()
            if "val/loss" in row
        ]
        finite = [pair for pair in validations if math.isfinite(pair[0])]
        best = min(finite, default=None)

    if is_trained(folder):
        state = "running"
    elif step is not None and step == max_steps:
        state = "done"
    else:
        state = "stopped"

    return Overview(
        folder=folder,
        state=state,
        changed=[line for line in typed if line.lstrip("+").partition("=")[0] not in UNTOLD],
        step=step,
        max_steps=max_steps,
        loss=None if best is None else best[0],
        bits_per_byte=None if best is None else best[1],
    )
