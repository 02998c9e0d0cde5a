"""What a sweep varies: values are drawn where Optuna's own distributions draw them, and typed as a user types them."""

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from gptmini.search.space import Dimension, points_of_grid
from gptmini.user_error import UserError


def drawn(dimension, seed=0):
    """Distribution and value that a trial of Optuna has drawn for a dimension."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
    trial = study.ask()
    dimension.draw(trial)
    return trial.distributions[dimension.key], trial.params[dimension.key]


@pytest.mark.parametrize(
    ("dimension", "distribution"),
    [
        (Dimension("lr", low=0.01, high=1.0), FloatDistribution(0.01, 1.0)),
        (Dimension("lr", low=0.01, high=1.0, is_log=True), FloatDistribution(0.01, 1.0, log=True)),
        (Dimension("n", low=1, high=64, is_whole=True), IntDistribution(1, 64)),
        (
            Dimension("n", low=1, high=64, is_whole=True, is_log=True),
            IntDistribution(1, 64, log=True),
        ),
        (Dimension("n", texts=("2", "4", "6")), IntDistribution(2, 6, step=2)),
        (Dimension("n", texts=("2", "4", "8")), CategoricalDistribution(("2", "4", "8"))),
        (Dimension("n", texts=("4", "2")), CategoricalDistribution(("4", "2"))),
        (Dimension("n", texts=("02", "04")), CategoricalDistribution(("02", "04"))),
        (Dimension("o", texts=("adamw", "muon")), CategoricalDistribution(("adamw", "muon"))),
    ],
)
def test_values_are_drawn_as_optuna_names_them(dimension, distribution):
    used, value = drawn(dimension)
    assert used == distribution
    assert distribution._contains(distribution.to_internal_repr(value))


def test_a_number_of_an_interval_is_typed_with_four_digits_and_stays_inside():
    rate = Dimension("lr", low=0.00123456, high=0.0987654, is_log=True)
    assert rate.text_of(0.012345678) == "0.01235"
    assert rate.text_of(0.00123456) == "0.001235"
    assert rate.text_of(0.0987654) == "0.0987654"
    assert rate.examples == ["0.001235", "0.0987654"]
    assert Dimension("n", low=1, high=9, is_whole=True).text_of(7) == "7"


def test_a_grid_has_every_combination_and_the_last_key_changes_fastest():
    grid = points_of_grid([Dimension("o", texts=("a", "b")), Dimension("n", texts=("1", "2"))])
    assert list(grid) == [
        {"o": "a", "n": 1},
        {"o": "a", "n": 2},
        {"o": "b", "n": 1},
        {"o": "b", "n": 2},
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 2.0, "high": 1.0}, "the interval of lr must go from a lower to a higher number"),
        ({"low": 0.0, "high": 1.0, "is_log": True}, "a logarithmic interval must lie above 0"),
        ({"texts": ("1", "2", "1")}, "lr must have each value once, got 1 twice"),
    ],
)
def test_values_that_cannot_be_tried_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        Dimension("lr", **options)
