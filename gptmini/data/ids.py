"""Ids of tokens as arrays: several files as one, and the marks of ids that the loss does not count."""

from collections.abc import Sequence

import numpy as np


class Shards:
    """Arrays of ids one after the other, without a copy: has a length, and is indexed by a slice or by positions."""

    def __init__(self, arrays: "Sequence[Ids]") -> None:
        """Take at least one array, (n,) each."""
        self._arrays = [array for array in arrays if len(array)]
        lengths = [len(array) for array in self._arrays]
        # Position of the first id behind each array.
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self.dtype = np.result_type(*(array.dtype for array in arrays))

    def __len__(self) -> int:
        """Number of ids."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, key: slice | np.ndarray) -> np.ndarray:
        """Ids of a slice, (n,), or at positions from 0 on, an int64 array of any shape."""
        if isinstance(key, slice):
            key = np.arange(*key.indices(len(self)))

        which = np.searchsorted(self._ends, key, side="right")
        ids = np.empty(key.shape, dtype=self.dtype)
        for i in np.unique(which):
            array = self._arrays[i]
            chosen = which == i
            first = self._ends[i] - len(array)
            ids[chosen] = array[key[chosen] - first]
        return ids


# What a split's ids may be.
Ids = np.ndarray | Shards


def without_marks(ids: np.ndarray) -> np.ndarray:
    """Ids of any shape as a model is given them: those that the loss does not count are stored as ~id, below 0."""
    return np.maximum(ids, ~ids) if ids.dtype.kind == "i" else ids
