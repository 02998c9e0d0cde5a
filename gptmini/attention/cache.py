"""Keys and values of the positions already seen, so that decoding computes each of them once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gptmini.attention.functional import causal_mask


class Slots:
    """Which slots of a cache a pass fills and which it may see: one answer for all layers of a model.

    Rows are filled from the left. While they are equally long a slice says it; ragged rows need an index and a mask.
    """

    def __init__(self, batch_size: int, capacity: int, *, static: bool = False, device: object = None) -> None:
        """Start empty; static keeps every shape the same from pass to pass, for a compiled step."""
        self.batch_size, self.capacity, self.static, self.device = batch_size, capacity, static, device
        self.lengths: int | Tensor = torch.zeros(batch_size, dtype=torch.int64, device=device) if static else 0
        self.positions: slice | Tensor = slice(0, 0)  # of the pass: the same in every row, or int64 (B, T)
        self.index: tuple = ()  # of the pass's slots, into (B, capacity, ...)
        self.visible = 0  # S, slots from the left that hold what some query may see
        self.mask: Tensor | None = None  # bool, broadcasts to (B, H, T, S); None where every key before a query counts

    def set_lengths(self, lengths: Sequence[int]) -> None:
        """Let row b go on after its first lengths[b] positions."""
        if self.static:
            self.lengths.copy_(torch.tensor(lengths))
        elif len(set(lengths)) == 1:
            self.lengths = lengths[0]
        else:
            self.lengths = torch.tensor(lengths, device=self.device)

    def take(self, n_tokens: int) -> None:
        """Give each row's next n_tokens slots to one pass; ValueError if they do not fit (unchecked when static)."""
        if isinstance(self.lengths, int):
            start, self.visible = self.lengths, self.lengths + n_tokens
            self.positions = slice(start, self.visible)
            self.index = (slice(None), self.positions)
            masked = start and n_tokens > 1  # a single query may see every key
            self.mask = causal_mask(n_tokens, self.visible, device=self.device) if masked else None
        else:
            rows, new = (torch.arange(n, device=self.device) for n in (self.batch_size, n_tokens))  # (B,), (T,)
            self.positions = self.lengths.unsqueeze(1) + new  # (B, T)
            self.index = (rows.unsqueeze(1), self.positions)
            self.visible = self.capacity if self.static else int(self.positions.max()) + 1
            keys = torch.arange(self.visible, device=self.device)  # (S,)
            self.mask = (keys <= self.positions.unsqueeze(-1)).unsqueeze(1)  # (B, 1, T, S)
        if self.visible > self.capacity:
            raise ValueError(f"a cache of {self.capacity} tokens cannot hold {self.visible}; encode fewer anew")
        self.lengths += n_tokens


class History:
    """What a smear has seen, position by position."""

    def __init__(self, slots: Slots, n_previous: int, d_model: int, **factory) -> None:
        """Reserve (B, K + capacity, C); the K = n_previous slots before the first position stay 0."""
        self.room = torch.zeros(slots.batch_size, n_previous + slots.capacity, d_model, **factory)
        self.n_previous, self.slots = n_previous, slots

    def append(self, x: Tensor) -> Tensor:
        """Store T positions (B, T, C); returns them after the K before (B, K + T, C)."""
        positions = self.slots.positions
        self.room[:, self.n_previous :][self.slots.index] = x
        if isinstance(positions, slice):
            return self.room[:, positions.start : positions.stop + self.n_previous]
        ahead = torch.arange(self.n_previous + x.size(1), device=x.device)  # (K + T,)
        return self.room[self.slots.index[0], positions[:, :1] + ahead]  # at (B, 1), (B, K + T)


class LayerCache:
    """One layer's keys and values, (B, capacity, G, D) each, and the history of its block's smear."""

    def __init__(self, keys: Tensor, values: Tensor, slots: Slots, history: History | None) -> None:
        self.keys, self.values, self.slots, self.history = keys, values, slots, history  # slots are all layers'

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the T positions that the slots were taken for (B, T, G, D); returns all S that may be seen."""
        self.keys[self.slots.index] = keys
        self.values[self.slots.index] = values
        return self.keys[:, : self.slots.visible], self.values[:, : self.slots.visible]  # (B, S, G, D) each


class KVCache:
    """A LayerCache for each block of a model; each pass takes slots, then the layers fill them. Not for training."""

    def __init__(
        self,
        n_layers: int,
        *,
        batch_size: int,
        n_kv_heads: int,
        capacity: int,
        d_head: int,
        d_model: int = 0,
        smear: int = 0,
        mlp_smear: int = 0,
        static: bool = False,
        **factory,
    ) -> None:
        """Reserve zeros, because what is masked must still be a number; factory is device and dtype.

        smear and mlp_smear are the previous positions that smears add; static: as for Slots, no tensor shares memory.
        """
        self.slots = Slots(batch_size, capacity, static=static, device=factory.get("device"))
        self.room = torch.zeros(n_layers, batch_size, capacity, 2 * n_kv_heads, d_head, **factory)  # keys, then values
        self.history, *histories = (
            History(self.slots, n_previous, d_model, **factory) if n_previous else None
            for n_previous in (smear, *[mlp_smear] * n_layers)
        )
        self.layers = []
        for i, history in enumerate(histories):
            halves = self.room[i, :, :, :n_kv_heads], self.room[i, :, :, n_kv_heads:]
            keys, values = (half.clone(memory_format=torch.contiguous_format) if static else half for half in halves)
            self.layers.append(LayerCache(keys, values, self.slots, history))
        self.room = None if static else self.room

    @property
    def tensors(self) -> list[Tensor]:
        """All that is kept of positions, each (B, capacity or K + capacity, ...)."""
        histories = [self.history, *(layer.history for layer in self.layers)]
        kept = [tensor for layer in self.layers for tensor in (layer.keys, layer.values)]
        return kept + [history.room for history in histories if history is not None]

    def fill(self, rows: Sequence[int], other: "KVCache", n_tokens: int) -> None:
        """Take over the first n_tokens positions of other's rows, one for each of rows; the caller sets lengths."""
        index = torch.tensor(rows, device=self.slots.device)
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            n_slots = mine.size(1) - self.slots.capacity + n_tokens
            mine[index, :n_slots] = theirs[:, :n_slots]
