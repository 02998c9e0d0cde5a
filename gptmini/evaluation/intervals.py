"""How sure a figure is: the bootstrap over documents, or over blocks of a text that is one document."""

from typing import NamedTuple

import numpy as np

from gptmini.evaluation.score import Sums

N_DRAWS = 2000
SEED = 0  # of the draws, so that a figure has one interval
SHARE = 0.95  # of the draws that lie in an interval
DRAWN_AT_ONCE = 2**22  # numbers of parts, which bounds the memory


class Interval(NamedTuple):
    """A range that, for SHARE of the texts that could be drawn from a source, holds the figure of the whole source."""

    low: float
    high: float


class Comparison(NamedTuple):
    """How sure it is that one model predicts a text better than another.

    Both are None where the models' tokenizers cut the text into different parts, and for a text of one part.
    """

    # Of the bits per byte of the second less those of the first.
    interval: Interval | None
    share_won: float | None  # of the parts, by the first: those of lower bits


def interval_of_loss(sums: Sums) -> Interval | None:
    """The interval of nats per token; None for a text of one part, of which nothing can be drawn."""
    return _interval(sums.nats, sums.n_tokens)


def interval_of_bits(sums: Sums) -> Interval | None:
    """The interval of bits per byte; None for a text of one part."""
    return _interval(sums.nats / np.log(2), sums.n_bytes)


def compare(first: Sums, second: Sums) -> Comparison:
    """Compare two models by their sums over the parts of one text; both draw the same parts in each draw."""
    if len(first.n_bytes) < 2 or not np.array_equal(first.n_bytes, second.n_bytes):
        return Comparison(interval=None, share_won=None)
    bits = (second.nats - first.nats) / np.log(2)
    return Comparison(
        interval=_interval(bits, first.n_bytes),
        share_won=float((bits > 0).mean()),
    )


def _interval(numerators: np.ndarray, denominators: np.ndarray) -> Interval | None:
    """The middle of the draws of a ratio of sums that holds SHARE of them; None for less than two parts."""
    # A part without text, as an end-of-text alone, would divide by zero where it is drawn alone.
    has_text = denominators > 0
    if has_text.sum() < 2:
        return None
    outside = (1 - SHARE) / 2
    draws = _draws(numerators[has_text], denominators[has_text])
    low, high = np.quantile(draws, (outside, 1 - outside))
    return Interval(float(low), float(high))


def _draws(numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
    """The ratio of the sums of parts that are drawn with replacement, as many as there are, (N_DRAWS,).

    Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", the percentile interval of chapter 13.
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
