"""Learning-rate schedules against numbers by hand and against nanoGPT's formula."""

import math

import pytest

from gptmini.optim import CosineSchedule, LinearSchedule, TrapezoidSchedule
from refusals import refused_keys

# Warm-up over 4 steps, then 8 decay steps from step 4 (peak) to step 12 (the last of 13), down to a fifth.
SETTINGS = {"max_steps": 13, "warmup_steps": 4, "final_fraction": 0.2}
WARMUP = [(0, 0.2), (1, 0.4), (2, 0.6), (3, 0.8), (4, 1.0)]
MIDDLE = [(8, 0.6)]  # halfway between 1 and 0.2, for both
END = [(12, 0.2), (13, 0.2), (10**12, 0.2)]
ROOT = math.sqrt(0.5)
# A quarter and three quarters of the way through the decay.
COSINE = [(6, 0.2 + 0.4 * (1 + ROOT)), (10, 0.2 + 0.4 * (1 - ROOT))]
LINEAR = [(5, 0.9), (6, 0.8), (10, 0.4), (11, 0.3)]


def cosine(step, *, max_steps, **settings):
    return CosineSchedule(**settings)(step, max_steps=max_steps)


def linear(step, *, max_steps, **settings):
    return LinearSchedule(**settings)(step, max_steps=max_steps)


def trapezoid(step, *, max_steps, **settings):
    return TrapezoidSchedule(**settings)(step, max_steps=max_steps)


@pytest.mark.parametrize(
    ("schedule", "points"),
    [(cosine, WARMUP + MIDDLE + END + COSINE), (linear, WARMUP + MIDDLE + END + LINEAR)],
)
def test_values_by_hand(schedule, points):
    for step, expected in points:
        assert schedule(step, **SETTINGS) == pytest.approx(expected, rel=1e-12), step


@pytest.mark.parametrize("schedule", [cosine, linear])
@pytest.mark.parametrize("final_fraction", [0, 0.25, 1])
def test_without_warmup_the_first_step_is_the_peak(schedule, final_fraction):
    settings = {"max_steps": 7, "warmup_steps": 0, "final_fraction": final_fraction}
    assert schedule(0, **settings) == 1
    assert schedule(3, **settings) == pytest.approx((1 + final_fraction) / 2)
    assert schedule(6, **settings) == pytest.approx(final_fraction)


def test_a_trapezoid_by_hand():
    settings = {"max_steps": 21, "warmup_steps": 4, "final_fraction": 0.2, "decay_fraction": 8 / 21}
    points = [
        *WARMUP,
        (5, 1.0),
        (12, 1.0),
        (13, 0.9),
        (16, 0.6),
        (19, 0.3),
        (20, 0.2),
        (21, 0.2),
        (10**12, 0.2),
    ]

    for step, expected in points:  # eight steps of decay, from step 12 (peak) to step 20 (the last)
        assert trapezoid(step, **settings) == pytest.approx(expected, rel=1e-12), step


@pytest.mark.parametrize("decay_fraction", [0, 0.3, 1])
@pytest.mark.parametrize("warmup_steps", [0, 7, 30])
def test_a_trapezoid_rises_stays_and_falls_within_its_bounds(decay_fraction, warmup_steps):
    settings = {
        "max_steps": 25,
        "warmup_steps": warmup_steps,
        "final_fraction": 0.1,
        "decay_fraction": decay_fraction,
    }
    values = [trapezoid(step, **settings) for step in range(25)]
    top = values.index(max(values))

    assert values[:top] == sorted(values[:top])
    assert values[top:] == sorted(values[top:], reverse=True)
    assert 0 < min(values) <= max(values) <= 1


def test_a_trapezoid_that_only_decays_is_the_straight_line():
    settings = {"max_steps": 25, "warmup_steps": 6, "final_fraction": 0.1}
    for step in range(25):
        assert trapezoid(step, **settings, decay_fraction=1) == linear(step, **settings)


@pytest.mark.parametrize(("max_steps", "warmup_steps"), [(2001, 100), (50, 0), (29, 11)])
@pytest.mark.parametrize("min_lr", [0.0, 1e-4])
def test_cosine_equals_nanogpt(max_steps, warmup_steps, min_lr):
    lr = 1e-3
    lr_decay_iters = max_steps - 1  # the number of the last step, which reaches min_lr

    def get_lr(it):  # train.py, "learning rate decay scheduler (cosine with warmup)"
        if it < warmup_steps:
            return lr * (it + 1) / (warmup_steps + 1)
        if it > lr_decay_iters:
            return min_lr
        decay_ratio = (it - warmup_steps) / (lr_decay_iters - warmup_steps)
        coeff = 0.5 * (1.0 + math.cos(math.pi * decay_ratio))

        return min_lr + coeff * (lr - min_lr)

    settings = {"max_steps": max_steps, "warmup_steps": warmup_steps, "final_fraction": min_lr / lr}
    for step in range(max_steps + 9):
        assert lr * cosine(step, **settings) == pytest.approx(get_lr(step), rel=1e-12, abs=1e-18)


@pytest.mark.parametrize("schedule", [cosine, linear])
@pytest.mark.parametrize(
    ("max_steps", "warmup_steps", "final_fraction"), [(101, 17, 0.1), (40, 0, 0.0), (23, 21, 0.5)]
)
def test_rises_strictly_to_the_peak_and_falls_strictly_to_the_end(
    schedule, max_steps, warmup_steps, final_fraction
):
    settings = {
        "max_steps": max_steps,
        "warmup_steps": warmup_steps,
        "final_fraction": final_fraction,
    }
    values = [schedule(step, **settings) for step in range(max_steps)]

    assert max(values) == values[warmup_steps] == 1
    assert values[: warmup_steps + 1] == sorted(set(values[: warmup_steps + 1]))
    assert values[warmup_steps:] == sorted(set(values[warmup_steps:]), reverse=True)
    assert min(values) > 0 or final_fraction == 0


@pytest.mark.parametrize("schedule", [cosine, linear])
def test_a_run_that_ends_within_the_warmup_only_rises(schedule):
    values = [schedule(step, max_steps=5, warmup_steps=9, final_fraction=0.1) for step in range(5)]
    assert values == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("warmup_steps", -1),
        ("warmup_steps", 1.0),
        ("warmup_steps", True),
        ("final_fraction", -0.1),
        ("final_fraction", "0.1"),
        ("final_fraction", None),
        ("decay_fraction", 1.1),
        ("decay_fraction", math.nan),
        ("decay", 0.5),
    ],
)
def test_a_setting_of_a_wrong_type_or_range_is_refused_by_its_key(key, value):
    settings = {"warmup_steps": 3, "final_fraction": 0, "decay_fraction": 1}
    assert refused_keys(TrapezoidSchedule, **settings | {key: value}) == {key}
