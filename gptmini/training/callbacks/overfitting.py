"""A notice that a run learns its text by heart: the validation loss no longer falls."""

from math import isfinite

import lightning as L
from pydantic import PositiveInt, validate_call

from gptmini.settings import STRICT
from gptmini.training.loggers.logger import say
from gptmini.training.module import GPTModule


class OverfittingNotice(L.Callback):
    """Says once that the validation loss has not fallen below its lowest value for several validations."""

    @validate_call(config=STRICT)
    def __init__(self, *, patience: PositiveInt) -> None:
        """Speak after `patience` validations in a row that are not below the lowest."""
        self.patience = patience
        self._lowest: float | None = None
        self._step = 0  # of the validation with the lowest loss
        self._n_above = 0  # validations since then
        self._is_told = False

    def state_dict(self) -> dict:
        """What a resumed run must know to speak when an undisturbed one would."""
        return {
            "lowest": self._lowest,
            "step": self._step,
            "n_above": self._n_above,
            "is_told": self._is_told,
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore state_dict()."""
        self._lowest = state["lowest"]
        self._step = state["step"]
        self._n_above = state["n_above"]
        self._is_told = state["is_told"]

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Count a validation, and speak when there were enough."""
        loss = pl_module.newest_evaluation.loss
        if not isfinite(loss):
            return  # a run that diverges does not overfit

        if self._lowest is None or loss < self._lowest:
            self._lowest = loss
            self._step = trainer.global_step
            self._n_above = 0
            return

        self._n_above += 1
        if self._n_above < self.patience or self._is_told:
            return
        self._is_told = True
        say(
            trainer,
            f"overfit  for {self._n_above} validations the loss has not fallen below {self._lowest:.4f} of step "
            f"{self._step}; more text, model.dropout=0.1 or a lower learning rate may help, and best.ckpt keeps the "
            "weights of that step; callbacks=early_stopping ends such runs",
        )
