"""What a step needs to be compiled into one CUDA graph: a cache of fixed shapes, in memory that never moves."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gptmini.attention import Slots
from gptmini.model import GPT
from gptmini.model.gpt_cache import GPTCache


class FixedSlots(Slots):
    """Slots of which every tensor keeps its shape and its place from pass to pass.

    Every pass sees all slots, because to read the longest row off a GPU would wait for it. So the caller sees to it
    that the slots suffice.
    """

    def __init__(self, batch_size: int, capacity: int, *, device: torch.device) -> None:
        """Start with empty rows; the arguments are those of Slots."""
        super().__init__(batch_size, capacity, device=device)
        self.lengths = torch.zeros(batch_size, dtype=torch.int64, device=device)  # (B,)

    def set_lengths(self, lengths: Sequence[int]) -> None:
        """Let row b go on after its first lengths[b] positions."""
        assert isinstance(self.lengths, Tensor)
        self.lengths.copy_(torch.tensor(lengths))

    def take(self, n_tokens: int) -> None:
        """Give the next n_tokens slots of each row to one pass."""
        assert isinstance(self.lengths, Tensor)
        self._take_index(self.lengths, n_tokens, self.capacity)
        self.lengths += n_tokens


def fixed_cache(model: GPT, batch_size: int, capacity: int) -> GPTCache:
    """An empty cache for a compiled step of a model: batch_size rows of capacity tokens each."""
    weight = model.embedding.weight
    slots = FixedSlots(batch_size, capacity, device=weight.device)
    cache = GPTCache(model.config, slots, dtype=weight.dtype)

    # No two tensors that a graph writes may share memory, as the views of one room do.
    for layer in cache.attention.layers:
        layer.keys = layer.keys.contiguous()  # (B, capacity, G, D)
        layer.values = layer.values.contiguous()  # (B, capacity, G, D)
    del cache.attention.room

    # A graph is recorded over tensors that stay where they are.
    for tensor in (slots.lengths, *cache.tensors):
        torch._dynamo.mark_static_address(tensor)
    return cache


def compiled(function: Callable, seen: Tensor | None) -> Callable:
    """A step of decoding as one CUDA graph; seen is what the step writes besides a fixed_cache."""
    if seen is not None:
        torch._dynamo.mark_static_address(seen)
    # Each batch size gets a graph of its own: a CUDA graph has fixed shapes.
    return torch.compile(function, mode="reduce-overhead", fullgraph=True, dynamic=False)
