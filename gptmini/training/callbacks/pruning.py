"""Report each validation to the sweep, and prune a run: end it early if it is worse than other runs of the sweep."""

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import lightning as L

from gptmini.training.loggers.logger import print_line
from gptmini.training.module import GPTModule

if TYPE_CHECKING:
    from gptmini.sweep.pruned import PrunedTrial


class Pruning(L.Callback):
    """A callback that ends a run of a sweep if other runs had better validations at the same step.

    The journal of the sweep is in the same folder as the run folder. The name of the run folder is the number of the
    trial. A run without a journal is never pruned. An example is a copy of the run in a different folder.
    """

    def __init__(self) -> None:
        self._trial: PrunedTrial | None = None
        self.stopping_reason_message = ""  # named as in Lightning's EarlyStopping

    def on_fit_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Open the journal in the first process."""
        # This import needs Optuna. Only runs of a sweep use this callback, so only a sweep needs Optuna.
        from gptmini.sweep.pruned import PrunedTrial

        run = Path(trainer.default_root_dir)
        if trainer.is_global_zero and PrunedTrial.is_one(run):
            self._trial = PrunedTrial(run)

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Report a validation. A pruned run ends after this step, and the step is saved.

        Do not report a validation outside the interval, such as the validation at the time limit, because other runs
        have no validation at this step.
        """
        if not pl_module.settings.validation_due(trainer.global_step):
            return
        is_pruned = False
        if self._trial is not None:
            evaluation = pl_module.latest_evaluation
            value = evaluation.bits_per_byte if self._trial.by_bits else evaluation.loss
            if isfinite(value):
                is_pruned = self._trial.report(trainer.global_step, value)

        # All processes of the run end together.
        if trainer.strategy.broadcast(is_pruned):
            reason = f"other runs of the sweep did better at step {trainer.global_step}"
            print_line(trainer, f"pruned   {reason}")
            self.stopping_reason_message = reason
            trainer.should_stop = True
