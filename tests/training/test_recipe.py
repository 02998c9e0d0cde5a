"""The values of the word auto, by hand."""

import pytest

from gptmini.training.recipe import (
    one_pass_values,
    recipe_for,
    steps_for,
    suitable_vocabulary,
)

TOKENS = 2048  # a step of the default run


@pytest.mark.parametrize(
    ("n_bytes", "n_steps"),
    [
        (2_000, 50),
        (45_000, 147),  # 15 * 45,000 bytes / (2048 * 0.36 * ln 512 bytes)
        (180_000, 530),  # 15 * 180,000 / (2048 * 0.36 * ln 1000)
        (1_000_000, 700),
        (10**10, 700),
    ],
)
def test_steps_of_a_text(n_bytes, n_steps):
    assert steps_for(n_bytes, TOKENS) == n_steps


@pytest.mark.parametrize(
    ("n_bytes", "n_vocab"),
    [
        (45_000, 512),
        (200_000, 1000),
        (1_000_000, 2000),  # 1020 * 5 ** 0.45 = 2104
        (2_000_000, 4000),  # 1020 * 10 ** 0.45 = 2875, and sqrt(2000 * 4000) = 2828
        (20_000_000, 4000),  # 8,000 would suit
    ],
)
def test_the_vocabulary_of_a_text(n_bytes, n_vocab):
    assert suitable_vocabulary(n_bytes) == n_vocab


@pytest.mark.parametrize(
    ("passes", "values"),
    [
        (0.2, (0.0, 0.0, None, 0.0, 0.7)),
        (1, (0.0, 0.0, None, 0.0, 0.7)),
        (1.4, (0.0, 0.04, None, 0.0, 0.7)),
        (2.4, (0.0, 0.14, 70, 0.12, 1.0)),
        (4, (0.02, 0.3, 70, 0.2, 1.0)),
        (15, (0.15, 1.0, 70, 0.3, 0.7)),
        (40, (0.2, 1.0, 70, 0.3, 0.7)),
    ],
)
def test_dropout_decay_and_average(passes, values):
    assert tuple(recipe_for(passes, 10.0, 700).values()) == values
    # A model with 0.2 weights per byte cannot memorise: 1 + 8.5 * 0.2 = 2.7 passes count.
    of_small_model = recipe_for(passes, 0.2, 700)
    assert of_small_model == recipe_for(min(passes, 2.7), 10.0, 700)


def test_only_a_setting_that_can_be_auto_is_replaced():
    values = {"_target_": "gptmini.model.ModelSettings", "dropout": "auto", "norm": "auto"}
    assert one_pass_values(values) == {"dropout": 0.0}
    other = {"_target_": "mine.Model", "dropout": "auto"}
    assert one_pass_values(other) == {}
