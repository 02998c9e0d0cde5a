"""The search space of a sweep: values in Hydra's grammar, the points of a grid, and consistent settings."""

import itertools

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from gptmini.configuration.sweep_space import space_of
from gptmini.sweep import Space, text_of
from gptmini.system.errors import UserError
from pretended_sweep import LAYERS, LISTED, RATE, settings


@pytest.mark.parametrize(
    ("override", "distribution"),
    [
        ("k=interval(0.01,1)", FloatDistribution(0.01, 1.0)),
        ("k=tag(log,interval(0.01,1))", FloatDistribution(0.01, 1.0, log=True)),
        ("k=int(interval(1,64))", IntDistribution(1, 64)),
        ("k=tag(log,int(interval(1,64)))", IntDistribution(1, 64, log=True)),
        ("k=adamw,muon", CategoricalDistribution(("adamw", "muon"))),
        ("k=range(2,9,2)", CategoricalDistribution(("2", "4", "6", "8"))),
    ],
)
def test_values_are_what_optuna_names_so(override, distribution):
    space = space_of({}, [override, "seed=1"])
    assert space.dimensions == {"k": distribution}
    assert (space.tried, space.fixed) == ({"k": override.removeprefix("k=")}, ["seed=1"])


def test_a_number_of_an_interval_has_four_digits_and_stays_inside():
    rate = FloatDistribution(0.00123456, 0.0987654, log=True)
    texts = [text_of(value, rate) for value in (0.012345678, 0.00123456, 0.0987654)]
    assert texts == ["0.01235", "0.001235", "0.0987654"]
    assert text_of(7, IntDistribution(1, 9)) == "7"


def test_a_grid_is_the_product_of_its_values_in_pythons_order():
    space = Space({"optimizer.lr": LISTED, "model.n_layers": LAYERS}, {}, [])
    points = [tuple(space.point(number).values()) for number in range(6)]
    assert points == list(itertools.product(("0.01", "0.03"), ("1", "2", "3")))


def test_every_value_is_checked_beside_the_first_of_the_others():
    space = Space({"optimizer.lr": LISTED, "n": IntDistribution(1, 8)}, {}, ["seed=1"])
    assert space.examples() == [
        ["seed=1", "optimizer.lr=0.01", "n=1"],
        ["seed=1", "optimizer.lr=0.03", "n=1"],
        ["seed=1", "optimizer.lr=0.01", "n=8"],
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lr=interval(2,1)", r"lr=interval\(2,1\).*low=2"),
        ("lr=tag(log,interval(0,1))", r"lr=tag\(log,interval\(0,1\)\).*low=0"),
        ("lr=1,2,1", "lr=1,2,1"),
    ],
)
def test_values_that_cannot_be_tried_are_refused(override, message):
    with pytest.raises(UserError, match=message):
        space_of({}, [override])


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
        settings(**changes).n_trials_of(Space({"optimizer.lr": RATE}, {}, []))


def test_a_grid_ends_with_its_last_point_or_after_fewer_trials():
    space = Space({"model.n_layers": LAYERS}, {}, [])
    assert [settings(trials=n).n_trials_of(space) for n in (None, 2, 9)] == [3, 2, 3]
