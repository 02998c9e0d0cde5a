"""When a run is saved, under which file names, and how its checkpoint files are written."""

from dataclasses import asdict
from math import isfinite
from pathlib import Path

import lightning as L
from lightning.pytorch.plugins import TorchCheckpointIO
from lightning.pytorch.strategies import DDPStrategy
from pydantic import NonNegativeInt, PositiveInt, validate_call
from pydantic.dataclasses import dataclass

from gptmini.checkpoint.file import write_checkpoint
from gptmini.files import replace_by_link
from gptmini.model.shard_writing import remove_unnamed, write_shards
from gptmini.settings import STRICT
from gptmini.training.meeting import is_loss
from gptmini.training.module import GPTModule
from gptmini.training.monitoring.logger import say

# Parameters of which fp32 weights with AdamW's moments are 24 GB.
SHARDS_ABOVE = 2 * 10**9


class Stop(SystemExit):
    """The request to end a run between two steps, raised by Stopping and caught when training has been left.

    Args:
        code: exit code of the command: 128 + the signal's number, or 0 for the time limit.
        reason: the name of the signal, or the time limit.
    """

    code: int

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code)
        self.reason = reason


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Best:
    """The validation with the lowest finite loss of a run."""

    loss: float  # nats per token
    bits_per_byte: float
    step: NonNegativeInt  # optimizer steps done before the validation


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes each checkpoint whole or not at all, and lets best.ckpt and last.ckpt of one step share a file.

    Where the file system makes no hard links, last.ckpt is a copy of best.ckpt instead.

    On several ranks only one writes while the others wait for it. Where keeps_errors is True, an error of writing is
    therefore kept in `error` and not raised, so that the writing rank reaches the others again.
    """

    keeps_errors = False
    writes_names = True  # whether this process gives files their names; of several that write shards only the first
    error: OSError | None = None  # of the newest save; None if it succeeded
    # Number of parameters above which tensors are written as shards; None: never.
    shards_above: int | None = None
    last_step: int | None = None  # step of this process's newest last.ckpt; None if it saved none
    best_step: int | None = None  # step of this process's newest best.ckpt; None if it saved none
    shared_step: int | None = None  # step at which last.ckpt was made from best.ckpt; None: never

    def save_checkpoint(
        self, checkpoint: dict, path: str | Path, storage_options: object = None
    ) -> None:
        """Write a checkpoint. The old last.ckpt becomes previous.ckpt when a new last.ckpt is written.

        Raises OSError: the file could not be written, and keeps_errors is False. The old file is as it was.
        """
        file = Path(path)
        self.error = None
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.name == "last.ckpt":
                self._save_last(checkpoint, file)
            else:
                self._write(checkpoint, file)

            if file.name == "best.ckpt":
                self.best_step = checkpoint["global_step"]
            if file.name == "last.ckpt":
                self.last_step = checkpoint["global_step"]
        except OSError as error:
            if not self.keeps_errors:
                raise
            self.error = error

    def _save_last(self, checkpoint: dict, path: Path) -> None:
        """Save last.ckpt: as a link to best.ckpt if that is of the same step, else as a file of its own."""
        best = path.with_name("best.ckpt")
        previous = path.with_name("previous.ckpt")
        step = checkpoint["global_step"]
        if self.best_step != step:
            self._write(checkpoint, path, previous=previous)
            return
        if not self.writes_names:
            return

        # If last.ckpt is best.ckpt already, linking again would lose the older previous.ckpt.
        if path.exists() and self.shared_step == step:
            return
        if path.exists():
            replace_by_link(path, previous)
        replace_by_link(best, path)
        self.shared_step = step
        if self.divides(checkpoint):
            remove_unnamed(path.parent)

    def _write(self, checkpoint: dict, path: Path, *, previous: Path | None = None) -> None:
        """Write a checkpoint as one file, or its tensors as shards if they are many."""
        if self.divides(checkpoint):
            write_shards(checkpoint, path, previous=previous)
        else:
            write_checkpoint(checkpoint, path, previous=previous)

    def divides(self, checkpoint: dict) -> bool:
        """Whether the tensors of a checkpoint are written as shards."""
        n_parameters = sum(weight.numel() for weight in checkpoint["state_dict"].values())
        return self.shards_above is not None and n_parameters > self.shards_above


class RunCheckpoints(L.Callback):
    """Saves last.ckpt at an interval, at the end and at a stop, and best.ckpt at the lowest validation loss.

    A checkpoint is written last: the events of its step are flushed and the validation of its step is done before it.
    """

    @validate_call(config=STRICT)
    def __init__(
        self, *, every_steps: PositiveInt, shards_above: NonNegativeInt = SHARDS_ABOVE
    ) -> None:
        """Save last.ckpt at an interval.

        Args:
            every_steps: optimizer steps from one save to the next.
            shards_above: number of parameters above which the tensors of a checkpoint are shards in a folder.
        """
        self.every_steps = every_steps
        self.shards_above = shards_above
        self.best: Best | None = None
        self._last_step: int | None = None  # step of the last.ckpt that this process saved

    def on_fit_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Say from which number of parameters on tensors are shards."""
        files = trainer.strategy.checkpoint_io
        assert isinstance(files, AtomicCheckpointIO)
        files.shards_above = self.shards_above
        files.writes_names = trainer.is_global_zero

    def state_dict(self) -> dict:
        """Return the best validation, which a resumed run must know."""
        best = None
        if self.best is not None:
            best = asdict(self.best)
        return {"best": best}

    def load_state_dict(self, state: dict) -> None:
        """Restore the state of state_dict()."""
        best = state["best"]
        self.best = None
        if best is not None:
            self.best = Best(**best)

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
            saved = self._save(trainer, "best")
            if not saved:
                self.best = best_before

        self._save_at_interval(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Save last.ckpt where a callback ended the run early, at a step that no interval falls on."""
        if self._last_step != trainer.global_step:
            self._save(trainer, "last", needed=True)

    def on_exception(
        self, trainer: L.Trainer, pl_module: GPTModule, exception: BaseException
    ) -> None:
        """Save last.ckpt when the run is asked to stop, or has lost another of its processes."""
        if isinstance(exception, Stop):
            self._save(trainer, "last", needed=True)
        elif is_loss(exception) and self._is_whole(trainer, pl_module):
            try:
                self._save(trainer, "last")
            except Exception as error:
                # Lightning waits for the other processes once the file is written.
                if not is_loss(error):
                    raise

    def _is_whole(self, trainer: L.Trainer, pl_module: GPTModule) -> bool:
        """Whether this process can save the newest step without the others, and is the one that writes."""
        has_all_weights = isinstance(trainer.strategy, DDPStrategy)
        is_new = self._last_step != trainer.global_step
        return trainer.is_global_zero and has_all_weights and is_new and not pl_module.is_stepping

    def _save_at_interval(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Save last.ckpt at each multiple of every_steps and after the last step of the run."""
        step = trainer.global_step
        ended = step >= pl_module.settings.max_steps
        due = step % self.every_steps == 0

        # While steps are not finite, last.ckpt stays the one from before them, so that a user can go back to it.
        if due:
            pl_module.settle()
            due = pl_module.bad_steps_in_a_row == 0

        if ended or due:
            self._save(trainer, "last", needed=ended)

    def _save(self, trainer: L.Trainer, name: str, *, needed: bool = False) -> bool:
        """Save name.ckpt and return whether that succeeded; if it failed, say so in one line.

        needed says that the run ends after this save, so that its OSError is raised.
        """
        # Events are flushed first, so that no step of a checkpoint is missing from the curves.
        for logger in trainer.loggers:
            logger.save()

        folder = Path(trainer.default_root_dir) / "checkpoints"
        files = trainer.strategy.checkpoint_io
        assert isinstance(files, AtomicCheckpointIO)  # build_trainer gives it to the trainer
        files.keeps_errors = True
        try:
            trainer.save_checkpoint(folder / f"{name}.ckpt", weights_only=False)
        finally:
            files.keeps_errors = False

        # Of several processes perhaps one alone has written; all must know whether that succeeded.
        error = trainer.strategy.broadcast(files.error)
        if error is None:
            if name == "last":
                self._last_step = trainer.global_step
            return True

        last = folder / "last.ckpt"
        kept = f"{last} is as it was" if last.exists() else "nothing is saved yet"
        step = trainer.global_step
        say(trainer, f"{name}.ckpt not saved at step {step}: {error.strerror}; {kept}")
        if needed:
            raise error
        return False
