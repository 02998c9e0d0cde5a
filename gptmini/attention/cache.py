"""Keys and values of the positions already seen, so that decoding computes each of them once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gptmini.attention.functional import causal_mask


class Slots:
    """Which slots of a cache a pass fills and which slots it may see: one answer for all layers of a model.

    Rows are filled from the left. While all rows are equally long, a slice names the slots; ragged rows need an index
    and a mask.
    """

    def __init__(
        self, batch_size: int, capacity: int, *, device: torch.device | None = None
    ) -> None:
        """Start with B = batch_size empty rows of capacity slots each, in a cache on the device; None for the CPU."""
        self.batch_size = batch_size
        self.capacity = capacity
        self.device = device

        # Positions that each row holds: a number while all rows are equally long, else int64 (B,). The longest stays
        # a number, because reading it off a GPU would wait for the GPU.
        self.lengths: int | Tensor = 0
        self.longest = 0

        # Of the running pass: its positions, the same slice in every row or int64 (B, T); their index into tensors
        # (B, capacity, ...); and S, the number of slots from the left that hold what some query may see.
        self.positions: slice | Tensor = slice(0, 0)
        self.index: tuple = ()
        self.visible = 0

        # Bool, broadcasts to (B, H, T, S); None where a query may see every key up to its own position.
        self.mask: Tensor | None = None

    def set_lengths(self, lengths: Sequence[int]) -> None:
        """Let row b go on after its first lengths[b] positions."""
        self.longest = max(lengths)
        if len(set(lengths)) == 1:
            self.lengths = lengths[0]
        else:
            self.lengths = torch.tensor(lengths, device=self.device)

    def take(self, n_tokens: int) -> None:
        """Give the next n_tokens slots of each row to one pass.

        Raises ValueError: the slots exceed the capacity.
        """
        visible = self.longest + n_tokens
        if visible > self.capacity:
            raise ValueError(
                f"a cache of {self.capacity} tokens cannot hold {visible}; encode fewer anew"
            )

        if isinstance(self.lengths, int):
            self._take_slice(self.lengths, visible)
        else:
            self._take_index(self.lengths, n_tokens, visible)
        self.lengths += n_tokens
        self.longest = visible

    def _take_slice(self, start: int, visible: int) -> None:
        """Take the slots from start to visible in every row."""
        self.visible = visible
        self.positions = slice(start, visible)
        self.index = (slice(None), self.positions)

        # A first pass is plainly causal, and a single query may see every key: neither needs a mask.
        self.mask = None
        n_tokens = visible - start
        if start > 0 and n_tokens > 1:
            self.mask = causal_mask(n_tokens, visible, device=self.device)  # (T, S)

    def _take_index(self, lengths: Tensor, n_tokens: int, visible: int) -> None:
        """Take n_tokens slots that begin where each row ends; S = visible slots may be seen."""
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
        """Take the room for keys and values, and the slots that all layers of a model share."""
        self.keys = keys
        self.values = values
        self.slots = slots

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values, (B, T, G, D) each, in the slots taken; return all that may be seen, (B, S, G, D)."""
        self.keys[self.slots.index] = keys
        self.values[self.slots.index] = values

        n_visible = self.slots.visible
        return self.keys[:, :n_visible], self.values[:, :n_visible]  # (B, S, G, D) each


class KVCache:
    """A LayerCache for each block of a model. Each pass takes slots, then the layers fill them. Not for training."""

    def __init__(
        self,
        n_layers: int,
        slots: Slots,
        *,
        n_kv_heads: int,
        d_head: int,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Reserve zeros for the slots of n_layers: a slot that is masked must still hold a number."""
        self.slots = slots

        # Keys and values of all layers lie in one tensor, so that one operation can cut the views of every layer. What
        # a head holds lies together, because each step reads all of it.
        shape = (n_layers, slots.batch_size, 2 * n_kv_heads, slots.capacity, d_head)
        self.room = torch.zeros(shape, device=slots.device, dtype=dtype)  # (N, B, 2 G, capacity, D)

        self.layers = []
        for layer in self.room.transpose(2, 3):  # (B, capacity, 2 G, D)
            keys = layer[:, :, :n_kv_heads]  # (B, capacity, G, D)
            values = layer[:, :, n_kv_heads:]  # (B, capacity, G, D)
            self.layers.append(LayerCache(keys, values, slots))

    @property
    def tensors(self) -> list[Tensor]:
        """Keys and values of every layer, (B, capacity, G, D) each."""
        tensors = []
        for layer in self.layers:
            tensors += [layer.keys, layer.values]
        return tensors

    def fill(self, rows: Tensor, other: "KVCache", n_tokens: int) -> None:
        """Copy the first n_tokens positions of other's rows into these rows, int64 (n,); the caller sets lengths."""
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            mine[rows, :n_tokens] = theirs[:, :n_tokens]
