"""Save the checkpoints of a run. They are best.ckpt, last.ckpt and previous.ckpt."""

from dataclasses import asdict
from math import isfinite
from pathlib import Path

import lightning as L
from lightning.pytorch.plugins import TorchCheckpointIO
from pydantic import NonNegativeInt, PositiveInt, validate_call
from pydantic.dataclasses import dataclass

from gptmini.checkpoint import write_checkpoint
from gptmini.runs import RunStatus, has_checkpoint, write_status
from gptmini.settings import STRICT
from gptmini.training.loggers.logger import print_line
from gptmini.training.module import GPTModule
from gptmini.training.stopping import Stop


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Best:
    """The validation of a run that has the lowest finite loss."""

    loss: float  # loss in nats per token
    bits_per_byte: float  # loss in bits per byte
    step: NonNegativeInt  # number of optimizer steps done before the validation


class AtomicCheckpointIO(TorchCheckpointIO):
    """A plugin for Lightning's Trainer that writes checkpoints atomically. The old last.ckpt becomes previous.ckpt."""

    def save_checkpoint(
        self, checkpoint: dict, path: str | Path, storage_options: object = None
    ) -> None:
        """Write a checkpoint. If this method raises OSError, the old file is unchanged."""
        file = Path(path)
        previous = file.with_name("previous.ckpt") if file.name == "last.ckpt" else None
        file.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(checkpoint, file, previous=previous)


class RunCheckpoints(L.Callback):
    """A callback that saves last.ckpt every every_steps steps and at the end, and best.ckpt at each lowest loss.

    A checkpoint is written after the validation of its step and after the events of its step have been flushed.
    """

    @validate_call(config=STRICT)
    def __init__(self, *, every_steps: PositiveInt) -> None:
        self.every_steps = every_steps
        self.best: Best | None = None
        self._last_step: int | None = None  # step of the latest last.ckpt that this process saved

    def state_dict(self) -> dict:
        """Return the best validation."""
        return {"best": None if self.best is None else asdict(self.best)}

    def load_state_dict(self, state: dict) -> None:
        """Restore the state that state_dict() returned."""
        best = state["best"]
        self.best = None if best is None else Best(**best)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: GPTModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Save last.ckpt if the step is due. Do not save inside a step, or between a step and its validation."""
        step_done = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        is_due = pl_module.settings.validation_due(trainer.global_step)
        # A run that a callback ends validates its last step, too.
        validation_follows = is_due or trainer.should_stop
        if step_done and not validation_follows:
            self._save_at_interval(trainer, pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Save best.ckpt if the validation loss is the lowest so far. Save last.ckpt if the step is due."""
        evaluation = pl_module.evaluation
        best_before = self.best
        is_lowest = best_before is None or evaluation.loss < best_before.loss

        # The checkpoint contains the state of this callback, so set the new best before writing the file.
        if isfinite(evaluation.loss) and is_lowest:
            self.best = Best(
                loss=evaluation.loss,
                bits_per_byte=evaluation.bits_per_byte,
                step=trainer.global_step,
            )
            if not self._save(trainer, "best"):
                self.best = best_before

        self._save_at_interval(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Save last.ckpt if it does not have the latest step, for example because a callback ended the run early."""
        self._save_at_end(trainer)

    def on_exception(
        self, trainer: L.Trainer, pl_module: GPTModule, exception: BaseException
    ) -> None:
        """Save last.ckpt if a signal ends the run."""
        if isinstance(exception, Stop):
            self._save_at_end(trainer)

    def _save_at_interval(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        step = trainer.global_step
        if step >= pl_module.settings.max_steps:
            self._save_at_end(trainer)
        elif step % self.every_steps == 0:
            # During a series of bad steps, keep the last.ckpt from before the series, so that a user can return to it.
            pl_module.step_reports.wait()
            if pl_module.step_reports.bad_steps_in_a_row == 0:
                self._save(trainer, "last")

    def _save_at_end(self, trainer: L.Trainer) -> None:
        # No other save follows, so a failure is an error.
        if self._last_step != trainer.global_step:
            self._save(trainer, "last", needed=True)

    def _save(self, trainer: L.Trainer, name: str, *, needed: bool = False) -> bool:
        """Save name.ckpt and return whether this succeeded. If it failed and needed is true, every rank raises."""
        # Flush events first, so that the curves contain all steps of the checkpoint.
        for logger in trainer.loggers:
            logger.save()

        folder = Path(trainer.default_root_dir)
        failure = None
        try:
            trainer.save_checkpoint(folder / "checkpoints" / f"{name}.ckpt", weights_only=False)
        except OSError as error:
            failure = error
            # Only the first rank writes. The other ranks wait for the first rank at the barrier at the end of
            # save_checkpoint.
            trainer.strategy.barrier()

        step = trainer.global_step
        failure = trainer.strategy.broadcast(failure)
        if failure is None:
            if name == "last":
                self._last_step = step
            if trainer.is_global_zero:
                try:
                    write_status(folder, RunStatus(state="running", step=step))
                except OSError as error:
                    message = f"cannot write the state of the run at step {step}: {error.strerror}"
                    print_line(trainer, message)
            return True

        remainder = (
            "the previous checkpoint is kept" if has_checkpoint(folder) else "no checkpoint exists"
        )
        print_line(
            trainer, f"{name}.ckpt not saved at step {step}: {failure.strerror}; {remainder}"
        )
        if needed:
            raise failure
        return False
