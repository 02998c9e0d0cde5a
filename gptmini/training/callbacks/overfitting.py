"""Detect overfitting. One callback warns about it, and another callback ends the run."""

from math import isfinite

import lightning as L
import torch
from pydantic import PositiveInt, validate_call
from torch import Tensor

from gptmini.settings import STRICT
from gptmini.training.callbacks.checkpoints import RunCheckpoints
from gptmini.training.loggers.logger import print_line
from gptmini.training.module import GPTModule


class Overfitting(L.Callback):
    """A callback that detects overfitting. Subclasses define what happens then.

    A validation shows overfitting if two conditions hold:

    - Its loss is above the lowest loss of the run by more than its standard error.
    - Its loss is above the training loss by more than its standard error. The training loss is the mean loss of the
      steps since the previous validation.

    Smaller differences are noise. Source: the one-standard-error rule, Hastie, Tibshirani and Friedman 2009, "The
    Elements of Statistical Learning", section 7.10.

    Args:
        patience: number of validations in a row that must show overfitting.
    """

    @validate_call(config=STRICT)
    def __init__(self, *, patience: PositiveInt) -> None:
        self.patience = patience
        self._lowest: float | None = None
        self._step = 0  # step of the validation with the lowest loss
        self._n_above = 0  # number of validations in a row that show overfitting
        # Sum and number of the training losses since the previous validation. They stay on the device until a
        # validation, so that the host does not wait for a GPU in every step.
        self._train_losses: float | Tensor = 0.0
        self._n_steps: float | Tensor = 0

    def state_dict(self) -> dict:
        """Return the counts, so that a resumed run detects overfitting at the same step as an uninterrupted run."""
        return {
            "lowest": self._lowest,
            "step": self._step,
            "n_above": self._n_above,
            "train_losses": float(self._train_losses),
            "n_steps": int(self._n_steps),
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore the state that state_dict() returned."""
        self._lowest = state["lowest"]
        self._step = state["step"]
        self._n_above = state["n_above"]
        # Earlier checkpoints do not contain these two values.
        self._train_losses = state.get("train_losses", 0.0)
        self._n_steps = state.get("n_steps", 0)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: GPTModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Add the loss of a finished step to the sum. Do nothing if the step was skipped because it was not finite."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches != 0:
            return
        loss = pl_module.step_loss
        is_applied = pl_module.not_finite == 0
        self._train_losses = self._train_losses + torch.where(is_applied, loss, loss.new_zeros(()))
        self._n_steps = self._n_steps + is_applied

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Count a validation, and act after `patience` validations in a row that show overfitting.

        Do not count a validation outside the interval, such as the validation at the time limit. So a resumed run
        detects overfitting at the same step as an uninterrupted run.
        """
        if not pl_module.settings.validation_due(trainer.global_step):
            return
        n_steps = int(self._n_steps)
        train_loss = float(self._train_losses) / n_steps if n_steps else None
        self._train_losses = 0.0
        self._n_steps = 0

        evaluation = pl_module.latest_evaluation
        if not isfinite(evaluation.loss):
            return  # a run that diverges does not overfit
        if self._lowest is None or evaluation.loss < self._lowest:
            self._lowest = evaluation.loss
            self._step = trainer.global_step

        noise = evaluation.standard_error
        has_risen = evaluation.loss - self._lowest > noise
        # Without a step since the previous validation, the training loss is unknown.
        is_above_train = train_loss is not None and evaluation.loss - train_loss > noise
        self._n_above = self._n_above + 1 if has_risen and is_above_train else 0
        if self._n_above < self.patience:
            return

        times = "validation" if self._n_above == 1 else "validations"
        place = ", in best.ckpt" if self._is_saved(trainer) else ""
        self.on_overfitting(
            trainer,
            f"val loss {evaluation.loss:.4f} is above {self._lowest:.4f} (step {self._step}{place}) and above "
            f"the training loss {train_loss:.4f}, for {self._n_above} {times}",
        )

    def _is_saved(self, trainer: L.Trainer) -> bool:
        """Return whether best.ckpt has the lowest loss. Saving may be off, or it may have failed."""
        # Another class of Lightning sets this attribute. The type checker cannot see it.
        callbacks = trainer.callbacks  # pyrefly: ignore[missing-attribute]
        bests = [callback.best for callback in callbacks if isinstance(callback, RunCheckpoints)]
        return any(best is not None and best.step == self._step for best in bests)

    def on_overfitting(self, trainer: L.Trainer, found: str) -> None:
        """Act after a validation. The argument found is a text with the losses."""
        raise NotImplementedError


class OverfittingNotice(Overfitting):
    """A callback that warns once if the run overfits."""

    _has_warned = False

    def state_dict(self) -> dict:
        """Return the counts, and whether the callback has warned."""
        return {**super().state_dict(), "is_told": self._has_warned}

    def load_state_dict(self, state: dict) -> None:
        """Restore the state that state_dict() returned."""
        super().load_state_dict(state)
        self._has_warned = state["is_told"]

    def on_overfitting(self, trainer: L.Trainer, found: str) -> None:
        """Warn, unless the callback has warned before."""
        if self._has_warned:
            return
        self._has_warned = True
        print_line(
            trainer,
            f"overfit  {found}; try more text, model.dropout=0.1 or a lower "
            "learning rate, or use callbacks=early_stopping to end the run when this happens",
        )


class EarlyStopping(Overfitting):
    """A callback that ends the run if the run overfits, or if a validation loss is not finite."""

    stopping_reason_message = ""  # why the run ended; named as in Lightning's EarlyStopping

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """End the run if the validation loss is not finite. Otherwise, count the validation."""
        super().on_validation_end(trainer, pl_module)
        loss = pl_module.latest_evaluation.loss
        if not isfinite(loss):
            self._end(trainer, f"val loss is {loss}")

    def on_overfitting(self, trainer: L.Trainer, found: str) -> None:
        """End the run after this step."""
        self._end(trainer, found)

    def _end(self, trainer: L.Trainer, reason: str) -> None:
        self.stopping_reason_message = reason
        trainer.should_stop = True
