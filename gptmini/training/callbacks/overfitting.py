"""Warn about overfitting if the validation loss no longer falls."""

from math import isfinite

import lightning as L
from pydantic import PositiveInt, validate_call

from gptmini.settings import STRICT
from gptmini.training.loggers.logger import print_line
from gptmini.training.module import GPTModule


class OverfittingNotice(L.Callback):
    """A callback that warns once if the validation loss stays above its lowest value.

    Args:
        patience: number of validations in a row without a new lowest loss after which the callback warns.
    """

    @validate_call(config=STRICT)
    def __init__(self, *, patience: PositiveInt) -> None:
        self.patience = patience
        self._lowest: float | None = None
        self._step = 0  # step of the validation with the lowest loss
        self._n_above = 0  # number of validations since the validation with the lowest loss
        self._has_warned = False

    def state_dict(self) -> dict:
        """Return the counts, so that a resumed run warns at the same step as an uninterrupted run."""
        return {
            "lowest": self._lowest,
            "step": self._step,
            "n_above": self._n_above,
            "is_told": self._has_warned,
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore the state that state_dict() returned."""
        self._lowest = state["lowest"]
        self._step = state["step"]
        self._n_above = state["n_above"]
        self._has_warned = state["is_told"]

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Count a validation, and warn after `patience` validations without a new lowest loss."""
        loss = pl_module.latest_evaluation.loss
        if not isfinite(loss):
            return  # a run that diverges does not overfit

        if self._lowest is None or loss < self._lowest:
            self._lowest = loss
            self._step = trainer.global_step
            self._n_above = 0
            return

        self._n_above += 1
        if self._n_above < self.patience or self._has_warned:
            return
        self._has_warned = True
        print_line(
            trainer,
            f"overfit  val loss has not fallen below {self._lowest:.4f} (step {self._step}, kept in best.ckpt) for "
            f"{self._n_above} validations; try more text, model.dropout=0.1 or a lower learning rate, "
            "or use callbacks=early_stopping to end the run when this happens",
        )
