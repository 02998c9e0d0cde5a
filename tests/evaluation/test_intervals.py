"""Bootstrap intervals equal the formulas of statistics in simple cases."""

import numpy as np
import pytest

from gptmini.evaluation.intervals import compare, interval_of_bits, interval_of_loss
from gptmini.evaluation.score import Sums

NORMAL_95 = 1.959964  # quantile of the normal distribution


def sums_of(nats, n_tokens, n_bytes):
    return Sums(np.array(nats, dtype=float), np.array(n_tokens), np.array(n_bytes))


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution():
    """With one token per document, the ratio is a mean with a known standard error."""
    draw = np.random.default_rng(1)
    nats = draw.normal(3.0, 0.5, size=4000)
    sums = sums_of(nats, np.ones(4000, int), np.full(4000, 2))
    low, high = interval_of_loss(sums)
    half = NORMAL_95 * nats.std() / np.sqrt(4000)
    assert (low, high) == pytest.approx((nats.mean() - half, nats.mean() + half), abs=0.1 * half)
    bits_low, bits_high = interval_of_bits(sums)
    assert (bits_low, bits_high) == pytest.approx(
        (low / 2 / np.log(2), high / 2 / np.log(2)), rel=1e-12
    )


def test_the_interval_of_a_ratio_is_that_of_the_linear_approximation():
    """With documents of different lengths: Cochran 1977, Sampling Techniques, formula 2.39."""
    draw = np.random.default_rng(2)
    n_tokens = draw.integers(10, 500, size=3000)
    nats = n_tokens * draw.normal(2.0, 0.3, size=3000)
    ratio = nats.sum() / n_tokens.sum()
    error = np.sqrt(((nats - ratio * n_tokens) ** 2).sum()) / n_tokens.sum()
    low, high = interval_of_loss(sums_of(nats, n_tokens, n_tokens))
    half = NORMAL_95 * error
    assert (low, high) == pytest.approx((ratio - half, ratio + half), abs=0.1 * half)


def test_the_draws_are_the_same_every_time_and_one_part_has_no_interval():
    draw = np.random.default_rng(3)
    sums = sums_of(draw.random(50), np.full(50, 3), np.full(50, 4))
    assert interval_of_loss(sums) == interval_of_loss(sums)
    assert interval_of_loss(sums_of([1.0], [3], [4])) is None


def test_a_comparison_pairs_documents():
    """A constant difference between two models is detected, however much the documents differ."""
    draw = np.random.default_rng(4)
    n_bytes = draw.integers(10, 100, size=200)
    nats = n_bytes * draw.normal(3.0, 2.0, size=200)
    first = sums_of(nats, n_bytes, n_bytes)
    second = sums_of(nats + 0.01 * n_bytes, n_bytes, n_bytes)
    result = compare(first, second)
    expected = 0.01 / np.log(2)
    assert result.interval == pytest.approx((expected, expected))
    assert result.share_won == 1.0
    assert compare(second, first).share_won == 0.0
    low, high = interval_of_bits(first)
    assert high - low > 10 * expected  # without pairing, the difference would not be detected


def test_a_part_without_text_divides_nothing_by_zero():
    sums = sums_of([1.0, 2.0, 3.0], [1, 2, 3], [0, 2, 3])
    low, high = interval_of_bits(sums)
    assert 0 < low <= high < 10


def test_texts_that_are_cut_into_other_parts_are_not_compared_part_by_part():
    first = sums_of([1.0, 2.0], [1, 2], [10, 10])
    second = sums_of([2.0, 2.0], [1, 2], [9, 11])
    assert compare(first, second) == (None, None)
