"""Confidence intervals from the bootstrap over documents, or over blocks if the text is a single document."""

from typing import NamedTuple

import numpy as np

from gptmini.evaluation.score import Sums

N_DRAWS = 2000
SEED = 0  # fixed, so that repeated evaluations give the same interval
SHARE = 0.95  # fraction of the resamples inside an interval
DRAWN_AT_ONCE = 2**22  # number of random part indices at a time; this limits the memory


class Interval(NamedTuple):
    """A confidence interval.

    If many texts are sampled from a source, the fraction SHARE of their intervals contains the value of the source.
    """

    low: float
    high: float


class Comparison(NamedTuple):
    """The comparison of two models on the same text.

    Both fields are None if the text has a single part, or if the tokenizers divide the text into different parts.
    """

    # Confidence interval of the difference in bits per byte: second model minus first model.
    interval: Interval | None
    share_won: float | None  # fraction of parts that the first model predicts better


def interval_of_loss(sums: Sums) -> Interval | None:
    """Return the confidence interval of the loss in nats per token.

    Return None for a text with one part, because all resamples of one part are equal.
    """
    return _interval(sums.nats, sums.n_tokens)


def interval_of_bits(sums: Sums) -> Interval | None:
    """Return the confidence interval of the loss in bits per byte. Return None for a text with one part."""
    return _interval(sums.nats / np.log(2), sums.n_bytes)


def compare(first: Sums, second: Sums) -> Comparison:
    """Compare two models by their sums over the parts of one text. The same resamples are used for both models."""
    if len(first.n_bytes) < 2 or not np.array_equal(first.n_bytes, second.n_bytes):
        return Comparison(interval=None, share_won=None)
    bits = (second.nats - first.nats) / np.log(2)
    return Comparison(
        interval=_interval(bits, first.n_bytes),
        share_won=float((bits > 0).mean()),
    )


def _interval(numerators: np.ndarray, denominators: np.ndarray) -> Interval | None:
    """Return the central interval that contains SHARE of the resampled ratios. Return None for fewer than two parts."""
    # Leave out parts without text, such as a single end-of-text token. A resample of only such parts would cause a
    # division by zero.
    has_text = denominators > 0
    if has_text.sum() < 2:
        return None
    outside = (1 - SHARE) / 2
    draws = _draws(numerators[has_text], denominators[has_text])
    low, high = np.quantile(draws, (outside, 1 - outside))
    return Interval(float(low), float(high))


def _draws(numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
    """Return the ratio of the sums of numerators and denominators in each of N_DRAWS resamples, (N_DRAWS,).

    Each resample takes n of the n parts with replacement.
    Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", percentile interval, chapter 13.
    """
    n = len(numerators)
    generator = np.random.default_rng(SEED)
    rows_at_once = max(1, DRAWN_AT_ONCE // n)

    ratios = []
    for first in range(0, N_DRAWS, rows_at_once):
        n_rows = min(rows_at_once, N_DRAWS - first)
        drawn = generator.integers(n, size=(n_rows, n))
        ratios.append(numerators[drawn].sum(axis=1) / denominators[drawn].sum(axis=1))
    return np.concatenate(ratios)
