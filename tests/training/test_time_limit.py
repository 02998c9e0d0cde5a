"""The time limit of a run: it leaves time for a validation of the last step, and a signal does not wait for it."""

import signal
import time

import lightning as L
import pytest
from lightning.pytorch.callbacks import EarlyStopping

from gptmini.runs.resume import find_training_state
from gptmini.training.callbacks.checkpoints import RunCheckpoints, Stop
from gptmini.training.stopping import Stopping
from training.watchers import AskedToStop


class Clock(L.Callback):
    """Makes a step take one second, a slow step five seconds, and a validation three seconds."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.slow = ()  # numbers of slow steps
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        seconds = 5 if trainer.global_step + 1 in self.slow else 1
        self.now += seconds / trainer.accumulate_grad_batches

    def on_validation_start(self, trainer, module):
        self.now += 3


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [8, 4])  # one and two micro-steps per step
@pytest.mark.parametrize(
    ("limit", "last_step", "seconds"),
    [
        # Steps end at 1, 2, 3, 4, 8, 9, 10 and 11 s, because a validation follows steps 4 and 8. After step 8, two
        # validations and a step would end at 18 s.
        (17.5, 8, 14),
        # The next steps end at 15 and 16 s. After step 10, a step and its validation would end at 20 s.
        (20, 10, 19),
        # A validation of 162 tokens takes 0.5 + 162 / 40 / 3 = 1.85 s by estimate. After step 2, a step and this
        # validation would end at 4.85 s.
        (4.8, 2, 5),
        (0.5, 1, 4),  # too short for anything but one step and its validation
    ],
)
def test_a_run_validates_its_last_step_within_the_time_limit(
    train, tmp_path, clock, batch_size, limit, last_step, seconds
):
    stopping = Stopping(limit)
    trainer = train(
        max_steps=100,
        batch_size=batch_size,
        val_every_steps=4,
        callbacks=[stopping, clock, RunCheckpoints(every_steps=50)],
    )

    assert stopping.late
    assert (trainer.global_step, clock.now) == (last_step, seconds)
    (tmp_path / "config.yaml").write_text("")
    state, _ = find_training_state(tmp_path)
    assert (state.step, state.validated_step) == (last_step, last_step)


def test_single_slow_steps_do_not_end_a_run_that_fits(train, clock):
    clock.slow = (1, 3)
    stopping = Stopping(25)
    trainer = train(max_steps=10, val_every_steps=10, callbacks=[stopping, clock])
    assert (stopping.late, trainer.global_step, clock.now) == (False, 10, 21)


def test_a_gpu_that_runs_one_step_behind_the_host_gets_the_time_of_another_step(
    train, clock, monkeypatch
):
    monkeypatch.setattr("gptmini.training.deadline.LATE_FROM", ("cpu",))
    trainer = train(max_steps=100, val_every_steps=4, callbacks=[Stopping(20), clock])
    # After step 9, two steps and a validation would end at 15 + 2 + 3 = 20 s.
    assert (trainer.global_step, clock.now) == (9, 18)


def test_a_callback_that_ends_the_run_at_the_time_limit_is_the_reason(train, tmp_path, clock):
    stop = EarlyStopping(monitor="val/loss", patience=1, min_delta=100.0)
    stopping = Stopping(17.5)
    reasons = []
    fit = L.Trainer.fit

    def until_stopped(trainer, module, data):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(L.Trainer, "fit", fit)
            reasons.append(stopping.fit_until_stopped(trainer, module, data))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(L.Trainer, "fit", until_stopped)
        trainer = train(max_steps=100, val_every_steps=4, callbacks=[stopping, clock, stop])
    assert (stopping.late, trainer.global_step) == (True, 8)
    assert stop.stopping_reason_message
    assert reasons[0].stopped_by is None


def test_a_run_that_ends_in_time_does_not_stop(train, clock):
    stopping = Stopping(16.5)
    trainer = train(max_steps=8, val_every_steps=4, callbacks=[stopping, clock])
    assert (stopping.late, trainer.global_step, clock.now) == (False, 8, 14)


def test_a_signal_saves_at_once_without_a_validation(train, tmp_path, clock):
    stopping = Stopping(100)
    callbacks = [AskedToStop(stopping, 5), stopping, clock, RunCheckpoints(every_steps=50)]
    with pytest.raises(Stop) as stop:
        train(max_steps=100, val_every_steps=4, callbacks=callbacks)
    assert stop.value.number == signal.SIGTERM
    assert clock.now == 9  # six steps and the validation after step 4

    (tmp_path / "config.yaml").write_text("")
    state, _ = find_training_state(tmp_path)
    assert (state.step, state.validated_step) == (6, 4)
