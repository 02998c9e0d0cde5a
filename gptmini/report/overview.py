"""What a table of runs says of each: what was changed, how far it is, and how well it does."""

import math
from dataclasses import dataclass
from pathlib import Path

from gptmini.report.reading import read_overrides
from gptmini.report.scalar_table import FILE, read_rows
from gptmini.run_folder import is_trained, read_config
from gptmini.user_error import UserError

# Keys that say where a run lies, how it is shown, and how many threads it has, which a sweep says of each of its runs;
# they change nothing that is trained.
UNTOLD = ("name", "runs_dir", "data_dir", "console", "resume", "trainer.threads")


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
    except (UserError, OSError, ValueError) as error:
        return Overview(folder=folder, state="damaged", changed=[], reason=str(error))


def _overview_of(folder: Path) -> Overview:
    """What there is to say of a run; UserError for one whose files are damaged."""
    max_steps = _max_steps(folder)
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

    typed = read_overrides(folder)
    return Overview(
        folder=folder,
        state=state,
        changed=[line for line in typed if line.lstrip("+").partition("=")[0] not in UNTOLD],
        step=step,
        max_steps=max_steps,
        loss=None if best is None else best[0],
        bits_per_byte=None if best is None else best[1],
    )


def _max_steps(folder: Path) -> int | None:
    """The steps of the whole run, from its config.yaml; None where the file does not say."""
    import yaml

    try:
        steps = yaml.safe_load(read_config(folder))["trainer"]["max_steps"]
    except (yaml.YAMLError, ValueError, LookupError, TypeError, RecursionError):
        raise UserError(f"{folder / 'config.yaml'} is not the configuration of a run") from None
    return steps if type(steps) is int else None
