"""Early stopping: after how many validations a run ends, also a resumed run and a run with a time limit."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.trainer.states import TrainerFn

from gptmini.training.callbacks.early_stopping import EarlyStopping


def validate(callback, losses, first_step=0, not_due=None):
    """Pass validation losses to the callback, ten steps apart. Return the step at which it ends the run, or None.

    The argument not_due is a step whose validation is outside the interval.
    """
    module = SimpleNamespace(settings=SimpleNamespace(validation_due=lambda step: step != not_due))
    for i, loss in enumerate(losses):
        trainer = SimpleNamespace(
            callback_metrics={"val/loss": torch.tensor(loss)},
            current_epoch=0,
            fast_dev_run=False,
            global_step=first_step + 10 * i,
            sanity_checking=False,
            should_stop=False,
            state=SimpleNamespace(fn=TrainerFn.FITTING),
            strategy=SimpleNamespace(reduce_boolean_decision=lambda decision, all: decision),
        )
        callback.on_validation_end(trainer, module)
        if trainer.should_stop:
            return trainer.global_step
    return None


CURVES = [
    ([3.0, 2.0, 2.1, 2.0, 1.9, 2.1, 2.2], None),
    ([3.0, 2.0, 2.1, 2.0, 2.2, 1.9], 40),
    ([3.0, 2.9, 2.8, 2.7, 2.6, 2.5], None),
    ([3.0, float("nan"), 2.0], 10),
]


@pytest.mark.parametrize(("losses", "step"), CURVES)
@pytest.mark.parametrize("n_before", range(4))
def test_a_run_ends_after_validations_without_a_lower_loss_also_if_it_is_resumed(
    losses, step, n_before
):
    first = EarlyStopping(patience=3)
    ended = validate(first, losses[:n_before])
    resumed = EarlyStopping(patience=3)
    resumed.load_state_dict(first.state_dict())
    if ended is None:
        ended = validate(resumed, losses[n_before:], first_step=10 * n_before)
    assert ended == step


def test_a_validation_outside_the_interval_does_not_count():
    losses = [3.0, 2.0, 9.0, 2.1, 2.2]
    assert validate(EarlyStopping(patience=2), losses) == 30
    assert validate(EarlyStopping(patience=2), losses, not_due=20) == 40


def test_the_state_of_an_earlier_rule_is_not_used():
    callback = EarlyStopping(patience=2)
    callback.load_state_dict({"lowest": 1.0, "step": 10, "n_above": 1, "n_steps": 2})
    assert validate(callback, [3.0, 2.0, 1.9]) is None
