"""Confidence intervals equal the formulas and tables of statistics in simple cases."""

from itertools import product

import numpy as np
import pytest

from gptmini.evaluation.intervals import (
    compare,
    interval_of_bits,
    interval_of_ratio,
    n_equal_parts,
)
from gptmini.evaluation.score import Sums

NORMAL_95 = 1.959964  # quantile of the normal distribution


def sums_of(nats, n_tokens, n_bytes):
    return Sums(np.array(nats, dtype=float), np.array(n_tokens), np.array(n_bytes))


def test_the_interval_of_a_ratio_is_that_of_the_linear_approximation():
    """With documents of different lengths: Cochran 1977, Sampling Techniques, formula 2.39."""
    draw = np.random.default_rng(2)
    n_tokens = draw.integers(10, 500, size=3000)
    nats = n_tokens * draw.normal(2.0, 0.3, size=3000)
    ratio = nats.sum() / n_tokens.sum()
    error = np.sqrt(((nats - ratio * n_tokens) ** 2).sum()) / n_tokens.sum()
    low, high = interval_of_ratio(nats, n_tokens)
    half = NORMAL_95 * error
    assert (low, high) == pytest.approx((ratio - half, ratio + half), abs=0.01 * half)
    bits = interval_of_bits(sums_of(nats, n_tokens, 2 * n_tokens))
    assert bits == pytest.approx((low / 2 / np.log(2), high / 2 / np.log(2)), rel=1e-12)


@pytest.mark.parametrize(("n", "t"), [(3, 4.302653), (6, 2.570582), (8, 2.364624), (41, 2.021075)])
def test_few_equal_parts_have_the_interval_of_students_t(n, t):
    """The quantiles come from the table of Student's t distribution with n - 1 degrees of freedom."""
    nats = np.random.default_rng(3).normal(3.0, 0.5, size=n)
    low, high = interval_of_ratio(nats, np.ones(n, int))
    half = t * nats.std(ddof=1) / np.sqrt(n)
    assert (low + high) / 2 == pytest.approx(nats.mean())
    assert half * 0.999 < (high - low) / 2 < half * 1.02


def test_the_variance_of_uneven_parts_is_right_on_average():
    """The losses per byte are 3 - 1 or 3 + 1, independently. The variance is known, and all 64 texts are tried."""
    n_bytes = np.array([1, 2, 2, 3, 4, 4])
    n_equal = 256 / 50
    assert n_equal_parts(n_bytes) == n_equal
    halves = []
    for signs in product((-1, 1), repeat=6):
        nats = (3 + np.array(signs)) * n_bytes
        low, high = interval_of_ratio(nats, n_bytes)
        halves.append((high - low) / 2)
    t = 2.571 + (1 / (n_equal - 1) - 1 / 5) / (1 / 3 - 1 / 5) * (3.182 - 2.571)  # at 4.12 degrees
    assert np.mean(np.square(halves)) == pytest.approx(t**2 / n_equal)


@pytest.mark.parametrize("n_bytes", [[4], [4, 4], [90, 1, 1, 1, 1], [100, 100, 1, 0]])
def test_few_or_uneven_parts_have_no_interval(n_bytes):
    draw = np.random.default_rng(3)
    sums, other = (sums_of(draw.random(len(n_bytes)), n_bytes, n_bytes) for _ in range(2))
    assert n_equal_parts(np.array(n_bytes)) < 3
    assert interval_of_bits(sums) is compare(sums, other)[0] is None


def test_a_comparison_pairs_documents():
    """A constant difference between two models is detected, however much the documents differ."""
    draw = np.random.default_rng(4)
    n_bytes = draw.integers(10, 100, size=200)
    nats = n_bytes * draw.normal(3.0, 2.0, size=200)
    first = sums_of(nats, n_bytes, n_bytes)
    second = sums_of(nats + 0.01 * n_bytes, n_bytes, n_bytes)
    interval, share_won = compare(first, second)
    expected = 0.01 / np.log(2)
    assert interval == pytest.approx((expected, expected))
    assert share_won == 1.0
    assert compare(second, first)[1] == 0.0
    low, high = interval_of_bits(first)
    assert high - low > 10 * expected  # without pairing, the difference would not be detected


def test_a_part_without_text_divides_nothing_by_zero():
    parts = [1.0, 2.0, 3.0, 4.0, 5.0], [1, 2, 2, 2, 2], [0, 2, 2, 2, 2]
    with_text = (part[1:] for part in parts)
    assert interval_of_bits(sums_of(*parts)) == interval_of_bits(sums_of(*with_text))


def test_texts_that_are_cut_into_other_parts_are_not_compared_part_by_part():
    first = sums_of([1.0, 2.0], [1, 2], [10, 10])
    second = sums_of([2.0, 2.0], [1, 2], [9, 11])
    assert compare(first, second) == (None, None)
