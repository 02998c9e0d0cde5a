"""The decoding cache of a GPT: the values of earlier positions that later positions need."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from gptmini.attention import KVCache, Slots
from gptmini.model.config import GPTConfig
from gptmini.model.smear import SmearHistory


class GPTCache:
    """The keys and values of every block, and the inputs of every smear. All of them share the same slots."""

    def __init__(self, config: GPTConfig, slots: Slots, *, dtype: torch.dtype) -> None:
        """Allocate the buffers. The numbers of rows and tokens come from the slots."""
        self.slots = slots
        self.attention = KVCache(
            config.n_layers,
            slots,
            n_kv_heads=config.n_kv_heads or config.n_heads,
            d_head=config.head_width,
            dtype=dtype,
        )

        def new_history(n_previous: int) -> SmearHistory | None:
            if n_previous == 0:
                return None
            return SmearHistory(slots, n_previous, config.d_model, dtype=dtype)

        self.smear = new_history(config.smear)
        self.mlp_smears = [new_history(config.mlp_smear) for _ in range(config.n_layers)]

    @property
    def histories(self) -> list[SmearHistory]:
        """The histories of all smears of the model."""
        return [history for history in (self.smear, *self.mlp_smears) if history is not None]

    @property
    def tensors(self) -> list[Tensor]:
        """All buffers of the cache. Each buffer has shape (B, capacity, ...) or (B, K + capacity, ...)."""
        return self.attention.tensors + [history.buffer for history in self.histories]

    def rows(self, rows: slice) -> "GPTCache":
        """Return a cache of some rows. The new cache shares the memory of this cache, but it has its own slots."""
        n_rows = len(range(*rows.indices(self.slots.batch_size)))
        slots = Slots(n_rows, self.slots.capacity, device=self.slots.device)

        part = copy.copy(self)
        part.slots = slots
        part.attention = self.attention.rows(rows, slots)
        part.smear = self.smear and self.smear.rows(rows, slots)
        part.mlp_smears = [history and history.rows(rows, slots) for history in self.mlp_smears]
        return part

    def fill(self, rows: Sequence[int], other: "GPTCache", n_tokens: int) -> None:
        """Copy the first n_tokens positions of each row of other into these rows.

        The caller sets the lengths of the rows.
        """
        index = torch.tensor(rows, device=self.slots.device)  # (n,)
        self.attention.fill(index, other.attention, n_tokens)
        for mine, theirs in zip(self.histories, other.histories, strict=True):
            mine.fill(index, theirs, n_tokens)
