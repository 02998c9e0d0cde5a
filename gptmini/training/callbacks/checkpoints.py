"""When a run is saved, and the names of its checkpoint files: best.ckpt, last.ckpt and previous.ckpt."""

from dataclasses import asdict
from math import isfinite
from pathlib import Path

import lightning as L
from lightning.pytorch.plugins import TorchCheckpointIO
from pydantic import NonNegativeInt, PositiveInt, validate_call
from pydantic.dataclasses import dataclass

from gptmini.checkpoint.file import write_checkpoint
from gptmini.runs import RunState, has_checkpoint, write_state
from gptmini.settings import STRICT
from gptmini.training.loggers.logger import say
from gptmini.training.module import GPTModule
from gptmini.training.stopping import Stop


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Best:
    """The validation with the lowest finite loss of a run."""

    loss: float  # nats per token
    bits_per_byte: float
    step: NonNegativeInt  # optimizer steps done before the validation


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes each checkpoint of Lightning's Trainer whole or not at all. The old last.ckpt becomes previous.ckpt."""

    def save_checkpoint(
        self, checkpoint: dict, path: str | Path, storage_options: object = None
    ) -> None:
        """Write a checkpoint; OSError if that fails, and the old file is as it was."""
        file = Path(path)
        previous = file.with_name("previous.ckpt") if file.name == "last.ckpt" else None
        file.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(checkpoint, file, previous=previous)


class RunCheckpoints(L.Callback):
    """Saves last.ckpt at an interval, at the end and at a stop, and best.ckpt at the lowest validation loss.

    A checkpoint is written last: the events of its step are flushed and the validation of its step is done before it.
    """

    @validate_call(config=STRICT)
    def __init__(self, *, every_steps: PositiveInt) -> None:
        """Save last.ckpt at an interval of so many optimizer steps."""
        self.every_steps = every_steps
        self.best: Best | None = None
        self._last_step: int | None = None  # step of the last.ckpt that this process saved

    def state_dict(self) -> dict:
        """Return the best validation, which a resumed run must know."""
        return {"best": None if self.best is None else asdict(self.best)}

    def load_state_dict(self, state: dict) -> None:
        """Restore the state of state_dict()."""
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
        """Save last.ckpt when the interval comes round, never inside a step or between a step and its validation."""
        step_done = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if step_done and not pl_module.settings.validation_due(trainer.global_step):
            self._save_at_interval(trainer, pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Save best.ckpt when the validation loss is the lowest yet, and last.ckpt when the interval comes round."""
        evaluation = pl_module.newest_evaluation
        best_before = self.best
        is_lowest = best_before is None or evaluation.loss < best_before.loss

        # The checkpoint holds the state of this callback, so the new best is set before the file is written.
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
        """Save last.ckpt where a callback ended the run early, at a step that no interval falls on."""
        self._save_at_end(trainer)

    def on_exception(
        self, trainer: L.Trainer, pl_module: GPTModule, exception: BaseException
    ) -> None:
        """Save last.ckpt when the run is asked to stop."""
        if isinstance(exception, Stop):
            self._save_at_end(trainer)

    def _save_at_interval(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Save last.ckpt at each multiple of every_steps and after the last step of the run."""
        step = trainer.global_step
        if step >= pl_module.settings.max_steps:
            self._save_at_end(trainer)
        elif step % self.every_steps == 0:
            # While steps are not finite, last.ckpt stays the one from before them, so that a user can go back to it.
            pl_module.outcomes.settle()
            if pl_module.outcomes.bad_steps_in_a_row == 0:
                self._save(trainer, "last")

    def _save_at_end(self, trainer: L.Trainer) -> None:
        """Save last.ckpt, unless it is of this step already; OSError if that fails, because no other save follows."""
        if self._last_step != trainer.global_step:
            self._save(trainer, "last", needed=True)

    def _save(self, trainer: L.Trainer, name: str, *, needed: bool = False) -> bool:
        """Save name.ckpt and return whether that succeeded; if it failed, say so in one line.

        needed says that the run ends after this save, so that its OSError is raised, by every rank.
        """
        # Events are flushed first, so that no step of a checkpoint is missing from the curves.
        for logger in trainer.loggers:
            logger.save()

        folder = Path(trainer.default_root_dir)
        failure = None
        try:
            trainer.save_checkpoint(folder / "checkpoints" / f"{name}.ckpt", weights_only=False)
        except OSError as error:
            failure = error
            # The first rank alone writes. The others wait for it at the barrier that ends save_checkpoint.
            trainer.strategy.barrier()

        failure = trainer.strategy.broadcast(failure)
        if failure is None:
            if name == "last":
                self._last_step = trainer.global_step
            self._write_state(trainer, folder)
            return True

        kept = (
            "the checkpoint before it is kept" if has_checkpoint(folder) else "nothing is saved yet"
        )
        step = trainer.global_step
        say(trainer, f"{name}.ckpt not saved at step {step}: {failure.strerror}; {kept}")
        if needed:
            raise failure
        return False

    def _write_state(self, trainer: L.Trainer, folder: Path) -> None:
        """Write into the run's folder which step is saved, for `gptmini runs`; if that fails, say so in one line."""
        if not trainer.is_global_zero:
            return
        try:
            write_state(folder, RunState(state="running", step=trainer.global_step))
        except OSError as error:
            say(trainer, f"state not written at step {trainer.global_step}: {error.strerror}")
