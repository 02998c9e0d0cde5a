"""When a run is saved, under which names, and how its files are written."""

from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path

import lightning as L
from lightning.pytorch.plugins import TorchCheckpointIO

from gptmini.checks import UserError, whole
from gptmini.files import replace_by_link
from gptmini.model.checkpoint import write_checkpoint
from gptmini.training.module import GPTModule
from gptmini.training.monitoring.logger import say


class Stop(SystemExit):
    """The run was asked to end between two steps; its code is 128 + the signal's number, or 0 for the time limit."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code)
        self.reason = reason  # SIGINT, SIGTERM, SIGUSR1 or the time limit


@dataclass(frozen=True)
class Best:
    """The validation with the lowest finite loss of a run."""

    loss: float  # nats per token
    bits_per_byte: float
    step: int  # optimizer steps that were done by then

    def __post_init__(self) -> None:
        """Raise UserError unless every figure is of its type and finite."""
        kinds = (type(self.loss), type(self.bits_per_byte), type(self.step))
        if kinds != (float, float, int) or not all(map(isfinite, (self.loss, self.bits_per_byte, self.step))):
            raise UserError(f"best must be a finite loss, finite bits per byte and a step, got {asdict(self)}")


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes each checkpoint whole or not at all, and lets equal ones share a file."""

    keeps_errors = False  # True: an error of a save is kept, because the other ranks wait for the one that writes
    error: OSError | None = None  # of the newest save
    best_step: int | None = None  # that this process saved best.ckpt of

    def save_checkpoint(self, checkpoint: dict, path: str, storage_options: object = None) -> None:
        """Write the checkpoint; last.ckpt keeps its predecessor as previous.ckpt, and is best.ckpt if of one step."""
        path = Path(path)
        self.error = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.name == "last.ckpt":
                self._save_last(checkpoint, path)
            else:
                write_checkpoint(checkpoint, path)
            if path.name == "best.ckpt":
                self.best_step = checkpoint["global_step"]
        except OSError as error:
            if not self.keeps_errors:
                raise
            self.error = error

    def _save_last(self, checkpoint: dict, path: Path) -> None:
        best = path.with_name("best.ckpt")
        previous = path.with_name("previous.ckpt")
        if self.best_step != checkpoint["global_step"]:
            write_checkpoint(checkpoint, path, previous=previous)
            return

        if path.exists() and path.samefile(best):
            return
        if path.exists():
            replace_by_link(path, previous)
        replace_by_link(best, path)


class RunCheckpoints(L.Callback):
    """Keeps last.ckpt at an interval, at the end and at a stop, and best.ckpt at the lowest validation loss.

    A checkpoint is written last: events are flushed and the step's validation is done before it.
    """

    def __init__(self, every_steps: int) -> None:
        """Save last.ckpt every so many optimizer steps; UserError unless that is a whole number above 0."""
        self.every_steps = whole("every_steps", every_steps)
        self.best: Best | None = None
        self._last_step: int | None = None  # that this process saved last.ckpt of

    def state_dict(self) -> dict:
        """What a resumed run must remember."""
        return {"best": None if self.best is None else asdict(self.best)}

    def load_state_dict(self, state: dict) -> None:
        """Restore state_dict(); UserError if it holds anything but a validation."""
        best = state["best"]
        self.best = None if best is None else Best(**best)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: GPTModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Save last.ckpt when the interval comes round, never inside a step or between it and its validation."""
        step_done = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if step_done and not pl_module.settings.validation_due(trainer.global_step):
            self._save_at_interval(trainer, pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Save best.ckpt when the loss is the lowest yet, and last.ckpt when it is due."""
        now = pl_module.evaluation
        before = self.best
        if isfinite(now.loss) and (before is None or now.loss < before.loss):
            self.best = Best(loss=now.loss, bits_per_byte=now.bits_per_byte, step=trainer.global_step)
            if not self._save(trainer, "best"):
                self.best = before
        self._save_at_interval(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Save last.ckpt where a callback ended the run early, at a step that no interval falls on."""
        if self._last_step != trainer.global_step:
            self._save(trainer, "last", needed=True)

    def on_exception(self, trainer: L.Trainer, pl_module: GPTModule, exception: BaseException) -> None:
        """Save last.ckpt when the run is asked to stop."""
        if isinstance(exception, Stop):
            self._save(trainer, "last", needed=True)

    def _save_at_interval(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        step = trainer.global_step
        ended = step >= pl_module.settings.max_steps
        due = step % self.every_steps == 0
        if due:
            pl_module.settle()
            due = not pl_module.bad_steps_in_a_row
        if ended or due:
            self._save(trainer, "last", needed=ended)

    def _save(self, trainer: L.Trainer, name: str, *, needed: bool = False) -> bool:
        """Save, or say in one line that it failed; OSError if it was needed, because the run ends."""
        for logger in trainer.loggers:
            logger.save()

        folder = Path(trainer.default_root_dir) / "checkpoints"
        files = trainer.strategy.checkpoint_io
        files.keeps_errors = True
        try:
            trainer.save_checkpoint(folder / f"{name}.ckpt", weights_only=False)
        finally:
            files.keeps_errors = False

        error = files.error
        if name == "last" and error is None:
            self._last_step = trainer.global_step
        if error is not None:
            last = folder / "last.ckpt"
            kept = f"{last} is as it was" if last.exists() else "nothing is saved yet"
            say(trainer, f"{name}.ckpt not saved at step {trainer.global_step}: {error.strerror}; {kept}")
            if needed:
                raise error
        return error is None
