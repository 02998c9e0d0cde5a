"""Measure how often the intervals of gptmini evaluate contain the true value, on simulated losses of documents."""

import argparse

import numpy as np

from gptmini.evaluation.intervals import Interval, compare, interval_of_bits
from gptmini.evaluation.score import Sums

from .harness import Table

TURNS = 2000  # texts of each row
# A text has documents of 4,000 bytes, or of lengths like those of notes and books (Pareto, shape 1.2).
EQUAL = 4000
SHORTEST = 200  # bytes
SHAPE = 1.2
MEAN_LENGTH = SHORTEST * SHAPE / (SHAPE - 1)

# Two tokens of a document have losses with the correlation CORRELATION ** distance. Documents differ by one of the
# standard deviations SPREADS, in bits per byte. The start of a document has little context and costs START more bits.
BITS = 1.6  # per byte, after the start of a document
BYTES_PER_TOKEN = 3.6
SPREAD_OF_TOKEN = 4.3  # bits, three quarters of the mean loss of a token
CORRELATION = 0.2
SPREADS = (0.1, 0.2, 0.3)
START = 100
SECOND = 0.05  # bits per byte that the second model needs more
SPREAD_OF_SECOND = 0.03  # of SECOND over documents


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Add a row for each number and law of documents."""
    rows = [(n, False) for n in (2, 5, 10, 20, 50)] + [(n, True) for n in (10, 100, 1000)]
    for n, is_uneven in rows:
        add_row(table, arguments.turns, n, is_uneven=is_uneven, of_all_lengths=False)
    for n in (10, 100, 1000):
        add_row(table, arguments.turns, n, is_uneven=True, of_all_lengths=True)


def add_row(table: Table, n_texts: int, n: int, *, is_uneven: bool, of_all_lengths: bool) -> None:
    """Add the coverage in percent: the smallest of all spreads of documents and of the comparison of two models."""
    hits = np.array([covered(n, seed, is_uneven, of_all_lengths) for seed in range(n_texts)])
    lengths = "lengths by Pareto's law" if is_uneven else "equal lengths"
    what = f"{n:,} documents, {lengths}" + (", value for all lengths" if of_all_lengths else "")
    share = np.isfinite(hits[:, 0]).mean()
    method = f"interval for {share:.0%} of {n_texts:,} texts"
    if not share:
        table.add(what, "no interval", method=method)
        return
    coverage = [100 * float(column) for column in np.nanmean(hits, axis=0)]
    goal = "" if of_all_lengths else "at least 90"
    table.add(what, min(coverage), spread=coverage, goal=goal, method=method)


def covered(n: int, seed: int, is_uneven: bool, of_all_lengths: bool) -> list[float]:
    """Return 1 for each interval that contains the true value, 0 for each other interval, and NaN for no interval.

    There is an interval for each of SPREADS, and one for the comparison of two models. The true value is the mean for
    new documents of the same lengths or, with of_all_lengths, of new lengths.
    """
    draw = np.random.default_rng(seed)
    lengths = SHORTEST * (1 + draw.pareto(SHAPE, n)) if is_uneven else np.full(n, EQUAL)
    n_tokens = np.ceil(lengths / BYTES_PER_TOKEN)
    n_bytes = np.round(n_tokens * BYTES_PER_TOKEN).astype(np.int64)
    true = BITS + START / (MEAN_LENGTH if of_all_lengths else n_bytes.mean())

    # The variance of the sum of n values with the correlation c: n (1 + c) / (1 - c) - 2 c (1 - cⁿ) / (1 - c)².
    c = CORRELATION
    variance = n_tokens * (1 + c) / (1 - c) - 2 * c * (1 - c**n_tokens) / (1 - c) ** 2
    variance = variance * SPREAD_OF_TOKEN**2

    hits = []
    for spread in SPREADS:
        mean = START + n_bytes * (BITS + spread * draw.normal(size=n)).clip(0.1)
        bits = draw.gamma(mean**2 / variance, variance / mean)  # skewed, as losses of tokens are
        first = Sums(bits * np.log(2), n_tokens, n_bytes)
        hits.append(contains(interval_of_bits(first), true))
    more = n_bytes * (SECOND + SPREAD_OF_SECOND * draw.normal(size=n))
    second = first._replace(nats=first.nats + more * np.log(2))
    hits.append(contains(compare(first, second)[0], SECOND))
    return hits


def contains(interval: Interval | None, value: float) -> float:
    """Return 1 if the interval contains the value, 0 if it does not, and NaN if there is no interval."""
    return np.nan if interval is None else float(interval.low <= value <= interval.high)
