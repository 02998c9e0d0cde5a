"""When a run that is training will save its first checkpoint."""

from pathlib import Path

from gptmini.runs.metrics import STEP, read_lines
from gptmini.runs.run_folder import read_config
from gptmini.settings import validation_interval


def no_checkpoint_yet(folder: Path) -> str:
    """Return the reason why a run that is training has no checkpoint, with the step of its first checkpoint."""
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
    intervals = (val_every_steps, checkpoints["every_steps"])
    # The smallest multiple of an interval that is at least the step.
    due = min(max_steps, *(max(1, -(-step // interval)) * interval for interval in intervals))
    if step == 0 and config.get("init_from") is not None:
        due = 0  # the run validates the trained weights before its first step
    return f"has no checkpoint yet; first checkpoint at step {due} (now at step {step})"
