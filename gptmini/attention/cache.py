"""Key/value cache: decoding computes the keys and values of each position only once."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from gptmini.attention.functional import causal_mask


class Slots:
    """The cache slots that a forward pass fills, and the slots that the pass attends to. All layers share these slots.

    Each row is filled from the left. If all rows have the same length, a slice selects the slots. If lengths differ,
    an index and a mask select them.
    """

    def __init__(
        self, batch_size: int, capacity: int, *, device: torch.device | None = None
    ) -> None:
        """Start with B = batch_size empty rows of capacity slots each, on the device (None: the CPU)."""
        self.batch_size = batch_size
        self.capacity = capacity
        self.device = device

        # Number of positions in each row: an int while all rows have the same length, otherwise int64 (B,). The
        # longest length is kept as an int, because reading it from a GPU tensor would wait for the GPU.
        self.lengths: int | Tensor = 0
        self.longest = 0

        # State of the current pass.
        # positions: the new positions, one slice for all rows or int64 (B, T).
        # index: the same positions as an index into tensors (B, capacity, ...).
        # visible: S, the number of slots from the left. They contain every key that a query may see.
        self.positions: slice | Tensor = slice(0, 0)
        self.index: tuple = ()
        self.visible = 0

        # Bool, broadcasts to (B, H, T, S); None if each query may see every key up to the query's position.
        self.mask: Tensor | None = None

    def set_lengths(self, lengths: Sequence[int]) -> None:
        """Keep the first lengths[b] positions of each row b. The next pass continues after these positions."""
        self.longest = max(lengths)
        if len(set(lengths)) == 1:
            self.lengths = lengths[0]
        else:
            self.lengths = torch.tensor(lengths, device=self.device)

    def reserve(self, n_tokens: int) -> None:
        """Reserve the next n_tokens slots of each row for one forward pass.

        Raises ValueError if a row needs more slots than the capacity.
        """
        visible = self.longest + n_tokens
        if visible > self.capacity:
            raise ValueError(
                f"a cache of {self.capacity} tokens cannot hold {visible} tokens; encode fewer tokens"
            )

        if isinstance(self.lengths, int):
            self._take_slice(self.lengths, visible)
        else:
            self._take_index(self.lengths, n_tokens, visible)
        self.lengths += n_tokens
        self.longest = visible

    def _take_slice(self, start: int, visible: int) -> None:
        self.visible = visible
        self.positions = slice(start, visible)
        self.index = (slice(None), self.positions)

        # No mask is needed in two cases: the first pass is plain causal attention (is_causal=True), and a single
        # new query may see every key.
        self.mask = None
        n_tokens = visible - start
        if start > 0 and n_tokens > 1:
            self.mask = causal_mask(n_tokens, visible, device=self.device)  # (T, S)

    def _take_index(self, lengths: Tensor, n_tokens: int, visible: int) -> None:
        """Reserve n_tokens slots after the end of each row. A query may see at most S = visible slots."""
        rows = torch.arange(self.batch_size, device=self.device)  # (B,)
        new = torch.arange(n_tokens, device=self.device)  # (T,)
        self.visible = visible
        self.positions = lengths.unsqueeze(1) + new  # (B, T)
        self.index = (rows.unsqueeze(1), self.positions)

        keys = torch.arange(visible, device=self.device)  # (S,)
        self.mask = (keys <= self.positions.unsqueeze(-1)).unsqueeze(1)  # (B, 1, T, S)


class LayerCache:
    """The keys and values of one layer, (B, capacity, G, D) each."""

    def __init__(self, keys: Tensor, values: Tensor, slots: Slots) -> None:
        """Wrap the buffers for keys and values, and the slots that all layers of a model share."""
        self.keys = keys
        self.values = values
        self.slots = slots

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values, (B, T, G, D) each, in the reserved slots.

        Return the keys and values in all visible slots, (B, S, G, D) each.
        """
        self.keys[self.slots.index] = keys
        self.values[self.slots.index] = values

        n_visible = self.slots.visible
        return self.keys[:, :n_visible], self.values[:, :n_visible]  # (B, S, G, D) each


class KVCache:
    """The keys and values of all blocks of a model, with a LayerCache for each block. It is for inference only.

    Each forward pass reserves slots, and then the layers fill the slots.
    """

    def __init__(
        self,
        n_layers: int,
        slots: Slots,
        *,
        n_kv_heads: int,
        d_head: int,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Allocate zeros instead of empty memory, because a masked slot must contain a finite number."""
        self.slots = slots
        # The positions of a head are contiguous in memory, because each decoding step reads all of them.
        shape = (slots.batch_size, n_kv_heads, slots.capacity, d_head)  # (B, G, capacity, D)

        def room() -> Tensor:
            return torch.zeros(shape, device=slots.device, dtype=dtype).transpose(1, 2)

        self.layers = [LayerCache(room(), room(), slots) for _ in range(n_layers)]

    def rows(self, rows: slice, slots: Slots) -> "KVCache":
        """Return a cache of some rows that shares the memory of this cache. slots are the slots of these rows."""
        part = copy.copy(self)
        part.slots = slots
        part.layers = [
            LayerCache(layer.keys[rows], layer.values[rows], slots) for layer in self.layers
        ]
        return part

    @property
    def tensors(self) -> list[Tensor]:
        """The key and value buffers of all layers, in the order of the layers; (B, capacity, G, D) each."""
        tensors = []
        for layer in self.layers:
            tensors += [layer.keys, layer.values]
        return tensors

    def fill(self, rows: Tensor, other: "KVCache", n_tokens: int) -> None:
        """Copy the first n_tokens positions of other into these rows, int64 (n,).

        The caller sets the lengths of the rows.
        """
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            mine[rows, :n_tokens] = theirs[:, :n_tokens]
