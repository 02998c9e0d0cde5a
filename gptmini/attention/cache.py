"""Keys and values of the positions already seen, so that decoding computes each of them once."""

import torch
from torch import Tensor


class LayerCache:
    """Room for one layer's keys and values, filled from the left."""

    def __init__(self, batch_size: int, n_kv_heads: int, capacity: int, d_head: int, **factory) -> None:
        """Reserve (B, G, capacity, D) for keys and as much for values; factory is device and dtype."""
        self.keys = torch.empty(batch_size, n_kv_heads, capacity, d_head, **factory)
        self.values = torch.empty_like(self.keys)
        self.length = 0
        self.recent: Tensor | None = None  # (B, K, C), what a block's smear saw last; None before the first position

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store T positions (B, G, T, D), return views of all S so far (B, G, S, D); ValueError if they do not fit."""
        end = self.length + keys.size(-2)
        if end > self.keys.size(-2):
            raise ValueError(f"a cache of {self.keys.size(-2)} tokens cannot hold {end}; reset it and encode again")
        self.keys[:, :, self.length : end] = keys
        self.values[:, :, self.length : end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]  # (B, G, S, D) each


class KVCache:
    """One LayerCache for each block of a model; blocks take theirs by index."""

    def __init__(
        self, n_layers: int, *, batch_size: int, n_kv_heads: int, capacity: int, d_head: int, **factory
    ) -> None:
        """Reserve 2 * n_layers * B * G * capacity * D numbers; factory is device and dtype."""
        self.layers = [LayerCache(batch_size, n_kv_heads, capacity, d_head, **factory) for _ in range(n_layers)]
        self.recent: Tensor | None = None  # (B, K, C), newest embeddings

    @property
    def length(self) -> int:
        """Positions stored, in tokens; equal in every layer between two passes."""
        return self.layers[0].length

    def reset(self) -> None:
        """Forget every position and keep the memory."""
        self.recent = None
        for layer in self.layers:
            layer.length, layer.recent = 0, None
