"""Report the steps that the optimizer skips because their loss or gradient is not finite."""

from pathlib import Path

import lightning as L

from gptmini.runs import has_checkpoint
from gptmini.system.errors import UserError
from gptmini.training.loggers.logger import log, print_line
from gptmini.training.module import GPTModule
from gptmini.training.step_reports import StepReport
from gptmini.training.stopping import Stop

# Number of windows in the line about a bad step. Eight windows are enough to find the text, and they fit into one line.
SHOWN = 8


class BadSteps(L.Callback):
    """A callback that logs each bad step, and raises UserError after max_bad_steps bad steps in a row.

    It must come before Stopping, so that a step is reported before a signal ends the run.
    """

    def __init__(self, max_bad_steps: int) -> None:
        self.max_bad_steps = max_bad_steps

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: GPTModule, *batch: object) -> None:
        """Report the bad steps whose metrics have arrived on the host."""
        self._report(trainer, pl_module)

    def on_validation_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Report all bad steps before a validation, because the run ends after the last validation."""
        pl_module.step_reports.wait()
        self._report(trainer, pl_module)

    def on_exception(
        self, trainer: L.Trainer, pl_module: GPTModule, exception: BaseException
    ) -> None:
        """Report all bad steps if a signal ends the run."""
        if isinstance(exception, Stop):
            pl_module.step_reports.wait()
            self._report(trainer, pl_module)

    def _report(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        while pl_module.step_reports.unreported:
            bad = pl_module.step_reports.unreported.pop(0)
            values = f"loss {bad.loss:.4g}, gradient norm {bad.grad_norm:.4g}"
            log(trainer, {"train/bad_steps": bad.bad_steps}, step=bad.step)

            # Lightning sets trainer.datamodule in a different class, so the type checker does not know this attribute.
            data = trainer.datamodule  # pyrefly: ignore[missing-attribute]
            starts = data.starts(bad.step - 1)
            windows = ", ".join(map(str, starts[:SHOWN])) + (" ..." if len(starts) > SHOWN else "")
            print_line(
                trainer,
                f"step {bad.step} skipped: {values}; the windows of this step start at tokens {windows} of train.bin",
            )
            if bad.bad_steps_in_a_row >= self.max_bad_steps:
                self._give_up(trainer, bad, values)

    def _give_up(self, trainer: L.Trainer, bad: StepReport, values: str) -> None:
        is_saved = has_checkpoint(Path(trainer.default_root_dir))
        saved = "the latest checkpoint" if is_saved else "no checkpoint"
        line = (
            f"{bad.bad_steps_in_a_row} steps in a row had a non-finite loss or gradient "
            f"(at step {bad.step}: {values}); {saved} was saved before these steps"
        )
        print_line(trainer, line)
        raise UserError(
            f"{line}; start a new run with a lower optimizer.lr, or check the text of these steps"
        )
