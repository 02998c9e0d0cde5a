"""When a run is saved, under which names, how its files are written, and which of them a resumed run goes on from."""

import math
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.plugins import TorchCheckpointIO

from gptmini.model.checkpoint import check_archive, is_dense, read_checkpoint, replace_by_link, write_checkpoint
from gptmini.training.loggers import say
from gptmini.training.module import GPTModule
from gptmini.training.settings import check_count
from gptmini.training.stopping import Stop

NAMES = ("last", "previous", "best")


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
        self.best = state["best"]
        kinds = {"loss": float, "bits_per_byte": float, "step": int}
        if self.best is not None and {name: type(figure) for name, figure in self.best.items()} != kinds:
            raise ValueError(f"best must be a loss, bits per byte and a step, got {self.best}")
        if self.best is not None and not all(map(math.isfinite, self.best.values())):
            raise ValueError(f"best must be finite, got {self.best}")

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
        if math.isfinite(now.loss) and (before is None or now.loss < before["loss"]):
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


def checkpoint_to_resume(path: Path) -> tuple[Path | None, dict | None, list[str]]:
    """Find where a run goes on: at the given file, or the readable checkpoint of the latest step in a run folder.

    Returns its path and contents, or None twice if nothing was saved yet, and a line on each damaged file passed over.
    Raises ValueError: the file, or every checkpoint of the folder, is damaged or holds no training state.
    """
    files, damaged = [path], []
    if path.is_dir():
        named = [path / "checkpoints" / f"{name}.ckpt" for name in NAMES]
        files = sorted(filter(Path.is_file, named), key=_step_of, reverse=True)  # the damaged first, to be named
    for file in files:
        try:
            checkpoint = read_checkpoint(file)
            _check_training_state(checkpoint, file)
            return file, checkpoint, damaged
        except ValueError as error:
            damaged.append(str(error))
    if damaged:
        raise ValueError(f"no checkpoint to resume from: {'; '.join(damaged)}")
    return None, None, []


def adopt(path: Path, step: int) -> list[Path]:
    """Let a run go on from one of its checkpoints: it becomes last.ckpt, and what is later or damaged is set aside.

    Returns the files set aside, under their new names, set-aside-<name>-<step>.ckpt, or inf for a damaged one.
    """
    aside = []
    for name in NAMES:
        other = path.with_name(f"{name}.ckpt")
        if other.is_file() and not other.samefile(path) and (other_step := _step_of(other)) > step:
            aside.append(other.replace(other.with_name(f"set-aside-{name}-{other_step}.ckpt")))
    for left in path.parent.glob(".*.tmp"):  # by a process that was killed while it wrote
        left.unlink()
    if not (last := path.with_name("last.ckpt")).exists() or not last.samefile(path):
        replace_by_link(path, last)
    return aside


def _step_of(path: Path) -> float:
    """Step that a file is of, its checksums right but its tensors not read; infinite if it is damaged."""
    try:
        check_archive(path)
        step = torch.load(path, map_location="cpu", mmap=True, weights_only=True)["global_step"]
        return step if type(step) is int and step >= 0 else math.inf
    except Exception:  # of whatever class: read_checkpoint will say how it is damaged
        return math.inf


def _check_training_state(checkpoint: dict, path: Path) -> None:
    """Raise ValueError unless a checkpoint holds what a run goes on from, and not the model alone."""
    try:
        own, (optimizer,) = checkpoint["gptmini"], checkpoint["optimizer_states"]
        done, n_bad, *counts = (checkpoint["global_step"], *own["bad_steps"], own["max_steps"], own["validated_step"])
        tensors = [tensor for state in optimizer["state"].values() for tensor in state.values()]
        fits = (
            all(type(count) is int and count >= 0 for count in (done, n_bad, *counts))
            and len(own["bad_steps"]) == 2
            and all(is_dense(tensor) for tensor in tensors)
            and (bool(tensors) or done == n_bad)
            and all(state["step"] == done - n_bad for state in optimizer["state"].values())
            and all(type(own["data"][key]) is str for key in ("folder", "fingerprint"))
        )
    except Exception:  # of whatever class: a stranger wrote it
        fits = False
    if not fits:
        raise ValueError(f"{path} holds no training state that this version can go on from")
