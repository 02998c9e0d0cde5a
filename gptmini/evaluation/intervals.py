"""Confidence intervals from the differences between documents, or between blocks if the text is a single document."""

from typing import NamedTuple

import numpy as np

from gptmini.evaluation.score import Sums

# If many texts with parts of the same lengths are sampled from a source, this fraction of their intervals contains the
# value of the source.
SHARE = 0.95
# Quantiles of Student's t distribution for SHARE. A straight line between them is at most 2 % above the curve.
INVERSE_DEGREES = (0, 1 / 20, 1 / 10, 1 / 5, 1 / 3, 1 / 2)  # 1 / degrees of freedom
QUANTILES = (1.960, 2.086, 2.228, 2.571, 3.182, 4.303)
# With fewer equal parts, the quantile is larger than 4.3, and an interval would often contain a loss below zero.
FEWEST_EQUAL_PARTS = 3


class Interval(NamedTuple):
    """A confidence interval. SHARE says how often it contains the true value."""

    low: float
    high: float


def interval_of_bits(sums: Sums) -> Interval | None:
    """Return the confidence interval of the loss in bits per byte, or None if interval_of_ratio returns None."""
    return interval_of_ratio(sums.nats / np.log(2), sums.n_bytes)


def compare(first: Sums, second: Sums) -> tuple[Interval | None, float | None]:
    """Compare two models by their sums over the parts of one text. Each part gives one difference.

    Return the confidence interval of the difference in bits per byte, second model minus first model, and the fraction
    of parts that the first model predicts better. Both are None if the text has a single part, or if the tokenizers
    divide the text into different parts. The interval is also None as in interval_of_ratio.
    """
    if len(first.n_bytes) < 2 or not np.array_equal(first.n_bytes, second.n_bytes):
        return None, None
    bits = (second.nats - first.nats) / np.log(2)
    return interval_of_ratio(bits, first.n_bytes), float((bits > 0).mean())


def n_equal_parts(lengths: np.ndarray) -> float:
    """Return the number of equally long parts that would give a mean with the same variance: sum(x)² / sum(x²).

    If one part is much longer than all others, this number is near 1. lengths has the shape (n_parts,).
    Source: Kish 1965, "Survey Sampling", effective sample size.
    """
    lengths = lengths.astype(np.float64)
    return float(lengths.sum() ** 2 / (lengths**2).sum())


def interval_of_ratio(numerators: np.ndarray, denominators: np.ndarray) -> Interval | None:
    """Return the t interval of the ratio R = sum(numerators) / sum(denominators).

    With the ratio r and the weight w = denominator / sum(denominators) of each part, the variance of R is

        sum(w² (r - R)² / (1 - 2 w + sum(w²)))

    Without the divisor, this is formula 2.39 of Cochran 1977, "Sampling Techniques". The divisor makes the variance
    unbiased for parts with the same variance. Source: Bell and McCaffrey 2002, "Bias Reduction in Standard Errors for
    Linear Regression with Multi-Stage Samples". The degrees of freedom, n_equal_parts - 1, are exact for equal parts.
    For other parts, scripts/benchmarks/intervals.py measures the coverage.

    Return None for fewer than FEWEST_EQUAL_PARTS equal parts.
    """
    n_equal = n_equal_parts(denominators)
    if n_equal < FEWEST_EQUAL_PARTS:
        return None

    has_text = denominators > 0  # leave out parts without text, such as a single end-of-text token
    ratios = numerators[has_text] / denominators[has_text]
    weights = denominators[has_text] / denominators.sum()
    ratio = (weights * ratios).sum()
    squares = weights**2 * (ratios - ratio) ** 2
    variance = (squares / (1 - 2 * weights + (weights**2).sum())).sum()

    quantile = np.interp(1 / (n_equal - 1), INVERSE_DEGREES, QUANTILES)
    half = quantile * np.sqrt(variance)
    return Interval(float(ratio - half), float(ratio + half))
