"""When a run is saved, under which names, and how Lightning writes and reads the files."""

import math
import os
from pathlib import Path

import lightning as L
from lightning.pytorch.plugins import TorchCheckpointIO

from gptmini.model.checkpoint import flush_folder, read_checkpoint, write_checkpoint
from gptmini.training.module import GPTModule, check_count


class CheckedCheckpointIO(TorchCheckpointIO):
    """Writes whole or not at all, reads only what its checksums confirm and only data."""

    def save_checkpoint(self, checkpoint: dict, path: str, storage_options: object = None) -> None:
        """Write the checkpoint; last.ckpt keeps its predecessor as previous.ckpt."""
        path = Path(path)
        path.parent.mkdir(exist_ok=True)
        if path.name == "last.ckpt" and path.exists():
            replace_by_link(path, path.with_name("previous.ckpt"))
        write_checkpoint(checkpoint, path)

    def load_checkpoint(self, path: str, map_location: object = None, weights_only: bool | None = True) -> dict:
        """Read onto the CPU, whatever else is asked for."""
        return read_checkpoint(Path(path))


class RunCheckpoints(L.Callback):
    """Keeps last.ckpt at an interval and at the end, and best.ckpt at the lowest validation loss."""

    def __init__(self, every_steps: int) -> None:
        """Save last.ckpt every so many optimizer steps.

        Raises:
            ValueError: every_steps is not a whole number above 0.
        """
        self.every_steps = check_count("every_steps", every_steps)
        self.best: dict | None = None  # loss (nats per token), bits_per_byte and step of the best validation
        self._saved_step = 0

    def state_dict(self) -> dict:
        """What a resumed run must remember."""
        return {"best": self.best}

    def load_state_dict(self, state: dict) -> None:
        """Restore state_dict()."""
        self.best = state["best"]

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: GPTModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Save last.ckpt when the interval comes round, never inside a step."""
        step_done = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if step_done and trainer.global_step % self.every_steps == 0:
            self._save_last(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Save best.ckpt when the loss is the lowest yet."""
        now = pl_module.evaluation
        if math.isfinite(now.loss) and (self.best is None or now.loss < self.best["loss"]):
            self.best = {"loss": now.loss, "bits_per_byte": now.bits_per_byte, "step": trainer.global_step}
            trainer.save_checkpoint(self.path(trainer, "best"), weights_only=False)

    def on_train_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Save the end of the run, sharing the file with best.ckpt where they are the same step."""
        step = trainer.global_step
        if step == self._saved_step:
            return
        if self.best is not None and step == self.best["step"]:
            if trainer.is_global_zero:
                best, last = self.path(trainer, "best"), self.path(trainer, "last")
                if last.exists():
                    replace_by_link(last, last.with_name("previous.ckpt"))
                replace_by_link(best, last)
        else:
            self._save_last(trainer)

    @staticmethod
    def path(trainer: L.Trainer, name: str) -> Path:
        """Where the run keeps the checkpoint of that name."""
        return Path(trainer.default_root_dir) / "checkpoints" / f"{name}.ckpt"

    def _save_last(self, trainer: L.Trainer) -> None:
        trainer.save_checkpoint(self.path(trainer, "last"), weights_only=False)
        self._saved_step = trainer.global_step


def replace_by_link(source: Path, target: Path) -> None:
    """Make target another name of source's file, in one step for whoever looks."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    os.link(source, temporary)
    temporary.replace(target)
    flush_folder(target.parent)
