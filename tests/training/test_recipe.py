"""The values of the word auto, by hand."""

import pytest

from gptmini.training.recipe import one_pass_values, recipe_for, steps_for, vocabulary_for

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
    ("n_bytes", "passes", "n_vocab"),
    [
        (200_000, 2, 2000),
        (200_000, 8, 1000),  # 2200 / 4 ** 0.5
        (2_000_000, 2, 4000),  # 2200 * 10 ** 0.3 = 4390
        (20_000_000, 2, 4000),  # 8,000 would suit
        (45_000, 15, 512),
        (200_000, 0.99, 4000),
    ],
)
def test_the_vocabulary_of_a_text(n_bytes, passes, n_vocab):
    assert vocabulary_for(n_bytes, 0, epochs=passes) == n_vocab
    # 0.36 * ln 2000 = 2.736 bytes per token
    n_tokens = passes * n_bytes / 2.736
    assert vocabulary_for(n_bytes, n_tokens, epochs=None) == n_vocab


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
    recipe = recipe_for(passes, 700)
    assert tuple(recipe.values()) == values


def test_only_a_setting_that_can_be_auto_is_replaced():
    values = {"_target_": "gptmini.model.ModelSettings", "dropout": "auto", "norm": "auto"}
    assert one_pass_values(values) == {"dropout": 0.0}
    other = {"_target_": "mine.Model", "dropout": "auto"}
    assert one_pass_values(other) == {}
