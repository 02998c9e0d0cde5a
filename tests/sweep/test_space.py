"""The search space of a sweep: override values, Optuna distributions, and consistent settings."""

import itertools

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from gptmini.sweep import Dimension, Space
from gptmini.sweep.study import _distribution_of
from gptmini.user_error import UserError
from pretended_sweep import LAYERS, LISTED, RATE, settings


@pytest.mark.parametrize(
    ("dimension", "distribution"),
    [
        (Dimension("lr", low=0.01, high=1.0), FloatDistribution(0.01, 1.0)),
        (Dimension("lr", low=0.01, high=1.0, is_log=True), FloatDistribution(0.01, 1.0, log=True)),
        (Dimension("n", low=1, high=64, is_integer=True), IntDistribution(1, 64)),
        (
            Dimension("n", low=1, high=64, is_integer=True, is_log=True),
            IntDistribution(1, 64, log=True),
        ),
        (Dimension("o", texts=("adamw", "muon")), CategoricalDistribution(("adamw", "muon"))),
    ],
)
def test_values_are_what_optuna_names_so(dimension, distribution):
    assert _distribution_of(dimension) == distribution


def test_a_number_of_an_interval_is_typed_with_four_digits_and_stays_inside():
    rate = Dimension("lr", low=0.00123456, high=0.0987654, is_log=True)
    assert rate.text_of(0.012345678) == "0.01235"
    assert rate.text_of(0.00123456) == "0.001235"
    assert rate.text_of(0.0987654) == "0.0987654"
    assert rate.examples == ["0.001235", "0.0987654"]
    assert Dimension("n", low=1, high=9, is_integer=True).text_of(7) == "7"


def test_a_grid_is_the_product_of_its_values_in_pythons_order():
    space = Space([LISTED, LAYERS], [])
    points = [tuple(space.point(number).values()) for number in range(space.n_points)]
    assert points == list(itertools.product(("0.01", "0.03"), ("1", "2", "3")))


def test_every_value_is_checked_beside_the_first_of_the_others():
    space = Space([LISTED, Dimension("n", low=1, high=8, is_integer=True)], ["seed=1"])
    assert space.examples() == [
        ["seed=1", "optimizer.lr=0.01", "n=1"],
        ["seed=1", "optimizer.lr=0.03", "n=1"],
        ["seed=1", "optimizer.lr=0.01", "n=8"],
    ]


@pytest.mark.parametrize(
    ("key", "by_bits"),
    [("tokenizer", True), ("data.path", True), ("+data.limit", True), ("model.n_layers", False)],
)
def test_runs_whose_tokens_differ_are_compared_by_bits(key, by_bits):
    assert Space([Dimension(key, texts=("a", "b"))], []).by_bits == by_bits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 2.0, "high": 1.0}, "lr must have low < high, got low=2 and high=1"),
        ({"low": 0.0, "high": 1.0, "is_log": True}, "lr must start above 0, got 0"),
        ({"texts": ("1", "2", "1")}, "lr must list each value once, got 1 twice"),
    ],
)
def test_values_that_cannot_be_tried_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        Dimension("lr", **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": "grid"}, "optimizer.lr, .* sweep.sampler=random"),
        ({"sampler": "random", "trials": None}, "random.* sweep.trials=N"),
        ({"trials": None}, "tpe.* sweep.trials=N"),
    ],
)
def test_settings_that_do_not_fit_the_space_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        settings(**changes).n_trials_of(Space([RATE], []))


def test_a_grid_ends_with_its_last_point_or_after_fewer_trials():
    space = Space([LAYERS], [])
    assert [settings(trials=n).n_trials_of(space) for n in (None, 2, 9)] == [3, 2, 3]
