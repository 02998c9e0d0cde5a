"""How much of the held-out text stands in the training text too."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

WINDOW = 50  # characters; two texts that share as many hold the same passage
# Leading bits of a hash. A table with a bit for each of their values, 16 MB, tells in one access that a window of the
# training text is surely not among the held-out ones, as most are not.
TABLE_BITS = 27
AT_ONCE = 2**20  # characters whose windows are hashed at once

_U64 = np.uint64
# Multiplier of the polynomial, odd, so that it has an inverse modulo 2^64: the golden ratio's, as of Fibonacci hashing.
BASE = 0x9E3779B97F4A7C15
INVERSE = pow(BASE, -1, 2**64)


@dataclass(frozen=True)
class Overlap:
    """Held-out documents that share a passage with the training text."""

    n_compared: int  # held-out documents of at least WINDOW characters
    # Those of them with a window of WINDOW characters that stands in the training text too.
    n_shared: int

    @property
    def share(self) -> float:
        """Share of the compared documents, from 0 to 1."""
        return self.n_shared / self.n_compared if self.n_compared else 0.0


def overlap_of(
    held_out: Iterable[str], train: Iterable[str], on_read: Callable[[str], None]
) -> Overlap:
    """Compare every window of the held-out documents with every window of the training documents.

    Memory is about 70 bytes for each character of the held-out documents. Windows are compared by hashes of 64 bits,
    so that with a hundred million windows on each side one false match is to be expected in two thousand comparisons.

    Args:
        held_out: the held-out documents.
        train: the training documents, of which one at a time is held.
        on_read: is told of each training document that has been compared.
    """
    hashes = []
    numbers = []
    n_compared = 0
    for text in held_out:
        of_text = np.unique(window_hashes(text))
        if of_text.size:
            hashes.append(of_text)
            numbers.append(np.full(of_text.size, n_compared, dtype=np.int64))
            n_compared += 1
    if not hashes:
        return Overlap(0, 0)

    # The held-out windows, sorted by their hashes, and the document of each.
    known = np.concatenate(hashes)
    order = np.argsort(known, kind="stable")
    known = known[order]
    documents = np.concatenate(numbers)[order]

    table = np.zeros(2**TABLE_BITS // 8, dtype=np.uint8)
    places = known >> _U64(64 - TABLE_BITS)
    np.bitwise_or.at(table, places >> _U64(3), np.left_shift(1, places & _U64(7)).astype(np.uint8))

    is_found = np.zeros(len(known), dtype=bool)
    for text in train:
        for first in range(0, max(len(text) - WINDOW + 1, 0), AT_ONCE):
            some = window_hashes(text[first : first + AT_ONCE + WINDOW - 1])
            places = some >> _U64(64 - TABLE_BITS)
            may_be_known = (table[places >> _U64(3)] >> (places & _U64(7)).astype(np.uint8)) & 1
            candidates = some[may_be_known.astype(bool)]
            found = np.minimum(np.searchsorted(known, candidates), len(known) - 1)
            is_found[found[known[found] == candidates]] = True
        on_read(text)

    # Equal hashes lie side by side, and only the first of them was found.
    is_first = np.concatenate(([True], known[1:] != known[:-1]))
    is_found = is_found[is_first][np.cumsum(is_first) - 1]
    return Overlap(n_compared, len(np.unique(documents[is_found])))


def window_hashes(text: str) -> np.ndarray:
    """A hash of each window of WINDOW characters, uint64 (len(text) - WINDOW + 1,), empty for a shorter text.

    The hash is a polynomial in BASE modulo 2^64 of the mixed code points (Karp and Rabin 1987), computed for all
    windows at once from sums of prefixes.
    """
    codes = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")
    if len(codes) < WINDOW:
        return np.zeros(0, dtype=_U64)

    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        letters = _mix(codes.astype(_U64))
        powers = _powers(BASE, len(codes))
        sums = np.concatenate(([_U64(0)], np.cumsum(letters * powers)))
        of_windows = sums[WINDOW:] - sums[:-WINDOW]
        return _mix(of_windows * _powers(INVERSE, len(of_windows)))


def _powers(base: int, n: int) -> np.ndarray:
    """base^0 to base^(n - 1) modulo 2^64, uint64 (n,)."""
    return np.cumprod(np.concatenate(([_U64(1)], np.full(n - 1, base, dtype=_U64))))


def _mix(values: np.ndarray) -> np.ndarray:
    """Spread the bits of 64-bit integers, elementwise: the finaliser of SplitMix64 (Steele et al. 2014)."""
    values = values + _U64(BASE)
    values = (values ^ (values >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> _U64(27))) * _U64(0x94D049BB133111EB)
    return values ^ (values >> _U64(31))
