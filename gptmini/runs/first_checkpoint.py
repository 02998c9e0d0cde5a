"""When a run that is training will save its first checkpoint."""

import time
from collections.abc import Sequence
from pathlib import Path

from gptmini.durations import duration
from gptmini.runs.metrics import STEP, TIME, Line, read_lines
from gptmini.runs.run_folder import read_config
from gptmini.settings import validation_interval


def no_checkpoint_yet(folder: Path) -> str:
    """Return the reason why a run has no checkpoint: the step of its first checkpoint, and the time left if known.

    The argument folder is the folder of a run that is training and has no checkpoint.
    """
    config, _ = read_config(folder)
    checkpoints = config["callbacks"].get("checkpoints")
    if checkpoints is None:
        return "has no checkpoint: callbacks.checkpoints is off"
    if "every_steps" not in checkpoints:  # a class of the user
        return f"has no checkpoint yet: callbacks.checkpoints is {checkpoints['_target_']}"

    points = read_lines(folder, having="train/loss")
    step = points[-1][STEP] if points else 0
    max_steps = config["trainer"]["max_steps"]
    val_every_steps = validation_interval(config["trainer"]["val_every_steps"], max_steps)
    if step == 0 and config.get("init_from") is not None:
        due = 0  # the run validates the trained weights before its first step
    else:
        due = min(
            _next_multiple(step, val_every_steps),
            _next_multiple(step, checkpoints["every_steps"]),
            max_steps,
        )

    now = f"now at step {step}"
    seconds = _seconds_until(due, points)
    if seconds is not None:
        now += f", about {duration(seconds)} left"
    return f"has no checkpoint yet; first checkpoint at step {due} ({now})"


def _next_multiple(step: int, interval: int) -> int:
    """Return the smallest positive multiple of the interval that is at least the step."""
    return max(1, -(-step // interval)) * interval


def _seconds_until(step: int, points: Sequence[Line]) -> float | None:
    """Return the seconds until a step, or None if fewer than two points of the loss are logged.

    The speed is the mean since the first point, which is after the first step. The first step may compile the model.
    """
    if len(points) < 2:
        return None
    first, last = points[0], points[-1]
    seconds_per_step = (last[TIME] - first[TIME]) / (last[STEP] - first[STEP])
    since_last = time.time() - last[TIME]
    return max(0.0, seconds_per_step * (step - last[STEP]) - since_last)
