"""End a run whose validation loss no longer falls."""

import lightning as L
from lightning.pytorch import callbacks
from pydantic import PositiveInt, validate_call

from gptmini.settings import STRICT
from gptmini.training.module import GPTModule


class EarlyStopping(callbacks.EarlyStopping):
    """Lightning's EarlyStopping for the validation loss.

    It ignores a validation outside the interval, such as the validation at the time limit. So a resumed run ends at the
    same step as an uninterrupted run.

    Args:
        patience: number of validations in a row that are not below the lowest loss, after which the run ends.
    """

    state_key = "EarlyStopping"  # frozen, because checkpoints contain it

    @validate_call(config=STRICT)
    def __init__(self, *, patience: PositiveInt) -> None:
        super().__init__("val/loss", patience=patience)

    def load_state_dict(self, state_dict: dict) -> None:
        """Restore the counts, but not the reason why an earlier start of the run ended."""
        # Earlier checkpoints contain the counts of another rule. Then count from here.
        if "wait_count" in state_dict:
            super().load_state_dict({**state_dict, "stopping_reason_message": None})

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Count a validation that is due, and end the run after `patience` validations without a lower loss."""
        if pl_module.settings.validation_due(trainer.global_step):
            super().on_validation_end(trainer, pl_module)
