"""When a run is saved, under which names, and how its files are written."""

from math import isfinite
from pathlib import Path

import lightning as L
from lightning.pytorch.plugins import TorchCheckpointIO

from gptmini.model.checkpoint import replace_by_link, write_checkpoint
from gptmini.training.module import GPTModule
from gptmini.training.monitoring.logger import say
from gptmini.training.settings import check_count


class Stop(SystemExit):
    """The run was asked to end between two steps; its code is 128 + the signal's number, or 0 for the time limit."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code)
        self.reason = reason  # SIGINT, SIGTERM, SIGUSR1 or the time limit


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes whole or not at all."""

    error: OSError | None = None  # of the newest save; kept, because the other ranks wait for the one that writes
    best_step: int | None = None  # that this process saved best.ckpt of

    def save_checkpoint(self, checkpoint: dict, path: str, storage_options: object = None) -> None:
        """Write the checkpoint; last.ckpt keeps its predecessor as previous.ckpt, and is best.ckpt if of one step."""
        path, self.error = Path(path), None
        best, previous = (path.with_name(f"{name}.ckpt") for name in ("best", "previous"))
        try:
            path.parent.mkdir(exist_ok=True)
            if path.name != "last.ckpt":
                write_checkpoint(checkpoint, path)
            elif self.best_step != checkpoint["global_step"]:
                write_checkpoint(checkpoint, path, previous=previous)
            elif not path.exists() or not path.samefile(best):
                if path.exists():
                    replace_by_link(path, previous)
                replace_by_link(best, path)
            if path.name == "best.ckpt":
                self.best_step = checkpoint["global_step"]
        except OSError as error:
            self.error = error


class RunCheckpoints(L.Callback):
    """Keeps last.ckpt at an interval, at the end and at a stop, and best.ckpt at the lowest validation loss.

    What a file holds is on disk before it: events are flushed first, and a validation of the same step comes first.
    """

    def __init__(self, every_steps: int) -> None:
        """Save last.ckpt every so many optimizer steps; ValueError unless that is a whole number above 0."""
        self.every_steps = check_count("every_steps", every_steps)
        self.best: dict | None = None  # loss (nats per token), bits_per_byte and step of the best validation

    def state_dict(self) -> dict:
        """What a resumed run must remember."""
        return {"best": self.best}

    def load_state_dict(self, state: dict) -> None:
        """Restore state_dict()."""
        best = self.best = state["best"]
        if best is not None:
            kinds = {name: type(figure) for name, figure in best.items()}
            if kinds != {"loss": float, "bits_per_byte": float, "step": int} or not all(map(isfinite, best.values())):
                raise ValueError(f"best must be a finite loss, finite bits per byte and a step, got {best}")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: GPTModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Save last.ckpt when the interval comes round, never inside a step or between it and its validation."""
        step_done = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if step_done and not pl_module.settings.validation_due(trainer.global_step):
            self._save_at_interval(trainer, pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Save best.ckpt when the loss is the lowest yet, and last.ckpt when it is due."""
        now, before = pl_module.evaluation, self.best
        if isfinite(now.loss) and (before is None or now.loss < before["loss"]):
            self.best = {"loss": now.loss, "bits_per_byte": now.bits_per_byte, "step": trainer.global_step}
            if not self._save(trainer, "best"):
                self.best = before
        self._save_at_interval(trainer, pl_module)

    def on_exception(self, trainer: L.Trainer, pl_module: GPTModule, exception: BaseException) -> None:
        """Save last.ckpt when the run is asked to stop."""
        if isinstance(exception, Stop):
            self._save(trainer, "last", needed=True)

    def _save_at_interval(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        step, ended = trainer.global_step, trainer.global_step >= pl_module.settings.max_steps
        if ended or (step % self.every_steps == 0 and not pl_module.bad_steps_in_a_row):
            self._save(trainer, "last", needed=ended)

    def _save(self, trainer: L.Trainer, name: str, *, needed: bool = False) -> bool:
        """Save, or say in one line that it failed; OSError if it was needed, because the run ends."""
        for logger in trainer.loggers:
            logger.save()
        folder = Path(trainer.default_root_dir) / "checkpoints"
        trainer.save_checkpoint(folder / f"{name}.ckpt", weights_only=False)
        error = trainer.strategy.checkpoint_io.error
        if error is not None:
            kept = f"{folder / 'last.ckpt'} is as it was" if (folder / "last.ckpt").exists() else "nothing is saved yet"
            say(trainer, f"{name}.ckpt not saved at step {trainer.global_step}: {error.strerror}; {kept}")
            if needed:
                raise error
        return error is None
