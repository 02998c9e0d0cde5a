"""The summary of a run for a table of runs: its state, progress, best loss and overrides."""

import math
from dataclasses import dataclass
from pathlib import Path

from gptmini.key_table import keys_with
from gptmini.runs import STEP, RunStatus, is_training, read_config, read_lines, read_status


@dataclass(frozen=True, kw_only=True)
class Overview:
    """The summary of one run."""

    folder: Path
    state: str  # 'running', 'done', 'ended', 'stopped', 'failed', 'killed' or 'damaged'
    changed: list[str]  # the overrides that change the result, each KEY=VALUE
    by: str | None = None  # the signal, callback or error that ended the run
    step: int | None = None  # optimizer steps done
    max_steps: int | None = None
    loss: float | None = None  # lowest validation loss, in nats per token
    bits_per_byte: float | None = None  # bits per byte at the validation with the lowest loss
    best_step: int | None = None  # the step of this validation
    status: RunStatus | None = None  # what the run has written about its end
    reason: str | None = None  # why the run cannot be read; None if it can be read

    @property
    def rank(self) -> float:
        """The bits per byte as a sort key, because tokens may differ. A run without a validation comes last."""
        return math.inf if self.bits_per_byte is None else self.bits_per_byte


def overview_of(folder: Path) -> Overview:
    """Return the summary of a run in any state. If the run cannot be read, the state is 'damaged'."""
    try:
        return _overview_of(folder)
    except (OSError, ValueError, LookupError, TypeError) as error:
        return Overview(folder=folder, state="damaged", changed=[], reason=str(error))


def _overview_of(folder: Path) -> Overview:
    config, typed = read_config(folder)
    validations = [
        (float(line["val/loss"]), float(line["val/bits_per_byte"]), line[STEP])
        for line in read_lines(folder, having="val/bits_per_byte")
    ]
    finite = [values for values in validations if all(map(math.isfinite, values[:2]))]
    loss, bits_per_byte, best_step = min(finite, default=(None, None, None))

    stored = read_status(folder)
    step = None if stored is None else stored.step
    by = None
    if is_training(folder):
        state = "running"
        # A run logs more often than it saves a checkpoint.
        step = max((line[STEP] for line in read_lines(folder)), default=step)
    elif stored is None or stored.state == "running":
        state = "killed"  # the stored step is that of the latest checkpoint; later steps are lost
    else:
        state = stored.state
        by = stored.by

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
        best_step=best_step,
        status=stored,
    )
