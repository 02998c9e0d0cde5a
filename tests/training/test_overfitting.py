"""Overfitting: which validations show it, the warning, the early end, and both in a resumed run."""

from types import SimpleNamespace

import pytest
import torch
import yaml

from gptmini.files import CONFIGS
from gptmini.settings import MIN_VALIDATIONS
from gptmini.training import EarlyStopping, OverfittingNotice, RunCheckpoints
from gptmini.training.callbacks.checkpoints import Best

TRAIN = 1.0  # training loss of every step, unless a curve has its own
ERROR = 0.05  # standard error of every validation loss


class Saying:
    """A logger that stores printed lines."""

    def __init__(self):
        self.lines = []

    def print_line(self, line):
        self.lines.append(line)


def validate(callback, losses, first_step=0, train=TRAIN, callbacks=(), not_due=None):
    """Pass validation losses to the callback, ten steps apart.

    The argument not_due is a step whose validation is outside the interval.

    The argument train is the training loss, or a list with the training loss before each validation. Return the printed
    lines and the step at which the callback has ended the run, or None.
    """
    logger = Saying()
    trains = train if isinstance(train, list) else [train] * len(losses)
    for i, (loss, train_loss) in enumerate(zip(losses, trains, strict=True)):
        step = first_step + 10 * i
        trainer = SimpleNamespace(
            loggers=[logger],
            callbacks=callbacks,
            global_step=step,
            should_stop=False,
            accumulate_grad_batches=2,
        )
        evaluation = SimpleNamespace(loss=loss, standard_error=ERROR)
        settings = SimpleNamespace(validation_due=lambda step: step != not_due)
        module = SimpleNamespace(latest_evaluation=evaluation, settings=settings)

        # Two steps of two micro-steps each, 0.5 above and below the mean. Then a skipped step, which must not count.
        for step_loss, not_finite in ((train_loss + 0.5, 0.0), (train_loss - 0.5, 0.0), (1e9, 1.0)):
            module.step_loss = torch.tensor(step_loss)
            module.not_finite = torch.tensor(not_finite)
            for micro_step in range(2):
                callback.on_train_batch_end(trainer, module, None, None, micro_step)
        callback.on_validation_end(trainer, module)
        if trainer.should_stop:
            return logger.lines, step
    return logger.lines, None


# Validation losses, training losses, and the number of the validation, from 0, that is the third in a row that shows
# overfitting.
CURVES = [
    ([3.0, 2.0, 2.1, 2.2], TRAIN, None),
    ([3.0, 2.0, 2.1, 2.2, 2.3], TRAIN, 4),
    ([3.0, 2.0, 2.1, 2.2, 1.9, 2.3, 2.4], TRAIN, None),
    ([3.0, 2.0, *[2.5] * 20], TRAIN, 4),
    # The loss no longer falls, or it rises by less than the standard error of 0.05.
    ([2.0] * 9, TRAIN, None),
    ([2.0, 2.04, 2.03, 2.04, 2.02, 2.04], TRAIN, None),
    # A validation within the noise interrupts the row.
    ([2.0, 2.1, 2.1, 2.04, 2.1, 2.1, 2.1], TRAIN, 6),
    # The validation loss is below the training loss. It is still falling after a low value.
    ([3.0, 2.0, 2.6, 2.5, 2.4, 2.3], [3.5, 3.2, 3.0, 2.9, 2.8, 2.7], None),
    # It rises but stays below the training loss, as with dropout. Then the training loss falls below it.
    ([2.0, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6], [2.5, 2.5, 2.5, 2.4, 2.3, 2.2, 2.1], 6),
    # It rises beyond the noise but is above the training loss by less than the standard error. Then the gap grows.
    ([2.0, 2.1, 2.1, 2.1, 2.1], 2.06, None),
    ([2.0, 2.1, 2.1, 2.1, 2.1, 2.1], [2.06, 2.06, 2.06, 2.04, 2.04, 2.04], 5),
    ([2.0, *[float("nan")] * 3], TRAIN, None),
]


@pytest.mark.parametrize(("losses", "train", "third"), CURVES)
def test_overfitting_is_a_rise_beyond_noise_above_the_training_loss(losses, train, third):
    lines, _ = validate(OverfittingNotice(patience=3), losses, train=train)
    assert len(lines) == (third is not None)
    assert all("above 2.0000 (step " in line for line in lines)


@pytest.mark.parametrize(("losses", "train", "third"), CURVES[:-1])
def test_early_stopping_ends_a_run_that_overfits(losses, train, third):
    callback = EarlyStopping(patience=3)
    lines, step = validate(callback, losses, train=train)
    assert (lines, step) == ([], None if third is None else 10 * third)
    assert ("above 2.0000 (step " in callback.stopping_reason_message) == (third is not None)


def test_a_validation_outside_the_interval_does_not_count():
    """The time limit adds a validation after step 30."""
    losses = [3.0, 2.0, 1.9, 9.0, 2.2, 2.3]
    _, step = validate(EarlyStopping(patience=2), losses, not_due=30)
    assert step == 50
    _, step = validate(EarlyStopping(patience=2), losses)
    assert step == 40


@pytest.mark.parametrize(
    ("option", "name", "kind"),
    [
        ("default", "overfitting", OverfittingNotice),
        ("early_stopping", "early_stopping", EarlyStopping),
    ],
)
def test_overfitting_from_the_second_validation_on_is_detected_before_the_end(option, name, kind):
    """The shortest runs have four validations."""
    assert MIN_VALIDATIONS == 4
    configured = yaml.safe_load((CONFIGS / "callbacks" / f"{option}.yaml").read_text())[name]
    callback = kind(patience=configured["patience"])
    lines, step = validate(callback, [5.54, 7.73, 8.2], train=[5.0, 3.0, 2.0])
    assert (len(lines), step) == ((1, None) if kind is OverfittingNotice else (0, 20))


def checkpoints(**best):
    """Return the callback that saves checkpoints. Its best.ckpt has the values of the argument best."""
    callback = RunCheckpoints(every_steps=500)
    callback.best = Best(**best) if best else None
    return callback


@pytest.mark.parametrize(
    ("callbacks", "place"),
    [
        ([checkpoints(loss=2.0, bits_per_byte=1.0, step=10)], "2.0000 (step 10, in best.ckpt)"),
        # The save at step 10 has failed, or both saves.
        ([checkpoints(loss=3.0, bits_per_byte=2.0, step=0)], "2.0000 (step 10)"),
        ([checkpoints()], "2.0000 (step 10)"),
        ([], "2.0000 (step 10)"),
    ],
)
def test_the_message_names_best_ckpt_only_if_it_has_the_lowest_loss(callbacks, place):
    notice = OverfittingNotice(patience=1)
    (line,), _ = validate(notice, [3.0, 2.0, 2.1], callbacks=callbacks)
    assert place in line


def test_early_stopping_ends_a_run_whose_loss_is_not_finite():
    callback = EarlyStopping(patience=3)
    assert validate(callback, [2.0, float("nan"), 1.9]) == ([], 10)
    assert "val loss is nan" in callback.stopping_reason_message


def test_a_validation_before_the_first_step_counts_as_the_lowest_loss_only():
    """A run from trained weights validates before its first step, so the training loss is not known yet."""
    callback = EarlyStopping(patience=1)
    trainer = SimpleNamespace(loggers=[], global_step=0, should_stop=False)
    evaluation = SimpleNamespace(loss=2.0, standard_error=ERROR)
    settings = SimpleNamespace(validation_due=lambda step: True)
    module = SimpleNamespace(latest_evaluation=evaluation, settings=settings)
    callback.on_validation_end(trainer, module)
    assert not trainer.should_stop
    assert validate(callback, [2.1], first_step=10) == ([], 10)


@pytest.mark.parametrize("n_before", range(7))
@pytest.mark.parametrize("kind", [OverfittingNotice, EarlyStopping])
def test_a_resumed_callback_acts_as_one_that_went_on(kind, n_before):
    losses = [3.0, 2.0, 2.1, 2.2, 2.3, 2.4, 2.5]
    first = kind(patience=3)
    lines, ended = validate(first, losses[:n_before])
    second = kind(patience=3)
    second.load_state_dict(first.state_dict())
    if ended is None:
        more, ended = validate(second, losses[n_before:], first_step=10 * n_before)
        lines += more
    assert (lines, ended) == validate(kind(patience=3), losses)


def test_the_training_losses_before_a_resume_count():
    first = OverfittingNotice(patience=3)
    module = SimpleNamespace(step_loss=torch.tensor(4.0), not_finite=torch.tensor(0.0))
    trainer = SimpleNamespace(accumulate_grad_batches=1)
    first.on_train_batch_end(trainer, module, None, None, 0)
    state = first.state_dict()
    assert (state["train_losses"], state["n_steps"]) == (4.0, 1)

    second = OverfittingNotice(patience=3)
    second.load_state_dict(state)
    module.step_loss = torch.tensor(2.0)
    second.on_train_batch_end(trainer, module, None, None, 0)
    assert second.state_dict()["train_losses"] / second.state_dict()["n_steps"] == 3.0
