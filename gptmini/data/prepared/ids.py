"""Arrays of token ids. Several arrays can act as one array.

A mark on an id means that the loss does not count the id.
"""

from collections.abc import Sequence

import numpy as np

# The loss ignores targets with this value. The value is the default ignore_index of torch's cross_entropy.
NOT_COUNTED = -100


class Shards:
    """Several arrays of ids that act as one array. The arrays are not copied.

    The index is a slice or an array of positions.
    """

    def __init__(self, arrays: "Sequence[Ids]") -> None:
        """Concatenate one or more arrays. Each array has the shape (n,)."""
        self._arrays = [array for array in arrays if len(array)]
        lengths = [len(array) for array in self._arrays]
        # Position of the first id after each array.
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self.dtype = np.result_type(*(array.dtype for array in arrays))

    def __len__(self) -> int:
        """Return the number of ids."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, key: slice | np.ndarray) -> np.ndarray:
        """Return the ids of a slice, or the ids at an array of positions.

        The ids of a slice have the shape (n,). The positions are int64 of any shape, counted from 0.
        """
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


# The type of the ids of a split.
Ids = np.ndarray | Shards


def cut_windows(ids: Ids, starts: np.ndarray, context_length: int) -> np.ndarray:
    """Cut windows with their last targets from ids (n_tokens,) at `starts` (B,). Return an array (B, T + 1)."""
    return ids[starts[:, None] + np.arange(context_length + 1)]


def without_marks(ids: np.ndarray) -> np.ndarray:
    """Remove the marks from ids of any shape.

    An id that the loss does not count is stored as ~id. This number is negative.
    """
    return np.maximum(ids, ~ids) if ids.dtype.kind == "i" else ids
