"""Prune a run of a sweep: end the run early if its loss is above the median of other runs at the same step."""

from pathlib import Path
from statistics import median

import lightning as L
from pydantic import NonNegativeInt, PositiveInt, validate_call

from gptmini.runs import read_lines, read_status
from gptmini.settings import STRICT
from gptmini.training.loggers.logger import print_line
from gptmini.training.module import GPTModule

BITS = "val/bits_per_byte"  # comparable even if the runs have different tokens


class Pruning(L.Callback):
    """A callback that compares each validation of a run with the finished runs in the same parent folder.

    A run may be pruned after `warmup` optimizer steps, if at least `startup` runs have finished.
    """

    @validate_call(config=STRICT)
    def __init__(self, *, startup: PositiveInt, warmup: NonNegativeInt) -> None:
        self.startup = startup
        self.warmup = warmup
        self.stopping_reason_message = ""  # named as in Lightning's EarlyStopping

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """End the run if it is worse than the median. Other runs have validations only at the interval."""
        step = trainer.global_step
        if step <= self.warmup or not pl_module.settings.validation_due(step):
            return

        others = []
        for status in Path(trainer.default_root_dir).absolute().parent.glob("*/state"):
            ended = read_status(status.parent)
            if ended is not None and ended.state == "done":
                lines = read_lines(status.parent, having=BITS)
                others += [line[BITS] for line in lines if line["step"] == step]

        is_worse = len(others) >= self.startup and (
            pl_module.evaluation.bits_per_byte > median(others)
        )
        if trainer.strategy.broadcast(is_worse):  # the ranks may have read different files
            self.stopping_reason_message = f"other runs of the sweep did better at step {step}"
            print_line(trainer, f"pruned   {self.stopping_reason_message}")
            trainer.should_stop = True
