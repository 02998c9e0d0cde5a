"""The average of the weights, by hand, and where a run uses it."""

import lightning as L
import numpy as np
import pytest

from gptmini.checkpoint import read_model
from gptmini.training.callbacks.checkpoints import RunCheckpoints

EMA_STEPS = 4


class Weights(L.Callback):
    """Stores the weights after each step, and those in place after each validation."""

    def __init__(self):
        self.trained = []
        self.validated = {}

    def on_train_batch_end(self, trainer, module, *hook):
        self.trained.append(weights_of(module.model))

    def on_validation_end(self, trainer, module):
        self.validated[trainer.global_step] = weights_of(module.model)


def weights_of(model):
    return {name: weight.detach().double().numpy() for name, weight in model.named_parameters()}


def average_of(trained):
    """The moving average of a list of weights, with the rate 1 at first."""
    average = trained[0]
    for step, weights in enumerate(trained[1:], start=1):
        rate = max(1 / EMA_STEPS, 9 / (step + 10))
        average = {name: average[name] + rate * (weights[name] - average[name]) for name in weights}
    return average


@pytest.fixture
def run(train, tmp_path):
    weights = Weights()
    # The last checkpoint of the run, at step 5, is saved between two validations.
    train(
        optimizer="muon",
        kind="modern",
        callbacks=[weights, RunCheckpoints(every_steps=5)],
        ema_steps=EMA_STEPS,
        max_steps=7,
        val_every_steps=3,
    )
    return weights


def assert_close(weights, expected):
    for name, weight in expected.items():
        np.testing.assert_allclose(weights[name], weight, rtol=1e-5, atol=1e-6, err_msg=name)


def test_validations_and_checkpoints_use_the_average(run, tmp_path):
    assert sorted(run.validated) == [3, 6, 7]
    for step, in_place in run.validated.items():
        assert_close(in_place, average_of(run.trained[:step]))

    folder = tmp_path / "checkpoints"
    assert_close(weights_of(read_model(folder / "last.ckpt")), average_of(run.trained))
    assert_close(weights_of(read_model(folder / "previous.ckpt")), average_of(run.trained[:5]))
