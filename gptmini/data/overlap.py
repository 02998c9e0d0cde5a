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


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """What held-out documents share with the training text."""

    n_compared: int  # held-out documents of at least WINDOW characters
    n_shared: (
        int  # those of them with a window of WINDOW characters that stands in the training text too
    )
    n_windows: int  # different windows of the compared documents
    n_windows_shared: int  # those of them that stand in the training text too


def overlap_of(
    held_out: Iterable[str], train: Iterable[str], on_read: Callable[[str], None]
) -> Overlap:
    """Compare every window of the held-out documents with every window of the training documents.

    Memory is about 80 bytes for each character of the held-out documents. Windows are compared by hashes of 64 bits,
    so that with a hundred million windows on each side one false match is to be expected in two thousand comparisons.

    Args:
        held_out: the held-out documents.
        train: the training documents, of which one at a time is held.
        on_read: is told of each training document that has been compared.
    """
    windows = HeldOutWindows(held_out)
    for text in train:
        windows.look_for(text)
        on_read(text)
    return windows.overlap()


class HeldOutWindows:
    """The windows of held-out documents, known by their hashes, and which of them have been found elsewhere."""

    def __init__(self, documents: Iterable[str]) -> None:
        """Hash the windows of the documents; a document of fewer than WINDOW characters has none."""
        hashes = [np.zeros(0, dtype=_U64)]
        owners = [np.zeros(0, dtype=np.int64)]
        self._n_documents = 0
        for text in documents:
            of_text = np.unique(window_hashes(text))
            if of_text.size:
                hashes.append(of_text)
                owners.append(np.full(of_text.size, self._n_documents, dtype=np.int64))
                self._n_documents += 1

        # A row for each different window of a document, in the order of the hashes.
        all_hashes = np.concatenate(hashes)
        order = np.argsort(all_hashes, kind="stable")
        self._owners = np.concatenate(owners)[order]
        # The different hashes, which of them each row has, and whether it was found.
        sorted_hashes = all_hashes[order]
        is_first = np.ones(len(sorted_hashes), dtype=bool)
        is_first[1:] = sorted_hashes[1:] != sorted_hashes[:-1]
        self._known = sorted_hashes[is_first]
        self._known_of_row = np.cumsum(is_first) - 1
        self._is_found = np.zeros(len(self._known), dtype=bool)

        self._table = np.zeros(2**TABLE_BITS // 8, dtype=np.uint8)
        byte, bit = _place_in_table(self._known)
        np.bitwise_or.at(self._table, byte, np.left_shift(1, bit).astype(np.uint8))

    def look_for(self, text: str) -> None:
        """Take down which of the windows stand in a text."""
        if not len(self._known):
            return
        for first in range(0, max(len(text) - WINDOW + 1, 0), AT_ONCE):
            some = window_hashes(text[first : first + AT_ONCE + WINDOW - 1])
            byte, bit = _place_in_table(some)
            may_be_known = ((self._table[byte] >> bit) & 1).astype(bool)

            candidates = some[may_be_known]
            nearest = np.minimum(np.searchsorted(self._known, candidates), len(self._known) - 1)
            self._is_found[nearest[self._known[nearest] == candidates]] = True

    def overlap(self) -> Overlap:
        """Count what has been found."""
        is_found = self._is_found[self._known_of_row]
        return Overlap(
            n_compared=self._n_documents,
            n_shared=len(np.unique(self._owners[is_found])),
            n_windows=len(self._known),
            n_windows_shared=int(self._is_found.sum()),
        )


def _place_in_table(hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The byte of the table, and the bit in it, of the leading TABLE_BITS bits of each hash."""
    places = hashes >> _U64(64 - TABLE_BITS)
    return places >> _U64(3), (places & _U64(7)).astype(np.uint8)


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
