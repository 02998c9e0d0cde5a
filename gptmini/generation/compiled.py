"""Compile a decoding step into one CUDA graph, with a cache whose shapes and addresses never change."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gptmini.attention import Slots
from gptmini.generation.rules import RuleGroups
from gptmini.generation.session import Session
from gptmini.model import GPT, GPTCache
from gptmini.tokenizer import Tokenizer


class CompiledSession(Session):
    """A session whose step is one CUDA graph. A step advances all rows, and all samples must have the same rules."""

    def __init__(self, model: GPT, tokenizer: Tokenizer, **options: Any) -> None:
        """Allocate the cache. The arguments are those of Session, but a row cannot be reused."""
        super().__init__(model, tokenizer, **options)
        self._score = self._forward
        # dynamic=False: each batch size gets its own graph, because a CUDA graph has fixed shapes.
        self._compiled_draw = torch.compile(
            super()._draw, mode="reduce-overhead", fullgraph=True, dynamic=False
        )

    def _new_cache(self, batch_size: int, capacity: int) -> GPTCache:
        weight = self.model.embedding.weight
        slots = FixedSlots(batch_size, capacity, device=weight.device)
        cache = GPTCache(self.model.config, slots, dtype=weight.dtype)

        # Tensors that a CUDA graph writes must not share memory. Therefore copy the views of the shared buffer.
        for layer in cache.attention.layers:
            layer.keys = layer.keys.contiguous()  # (B, capacity, G, D)
            layer.values = layer.values.contiguous()  # (B, capacity, G, D)
        del cache.attention.buffer

        # A CUDA graph records memory addresses.
        for tensor in (slots.lengths, *cache.tensors):
            torch._dynamo.mark_static_address(tensor)
        return cache

    def _span_of(self, first: int, last: int) -> slice:
        return slice(0, len(self.rows))

    def _start(self, span: slice, lengths: Sequence[int]) -> None:
        self._slots.set_lengths(lengths)

    def _draw(
        self, inputs: Tensor, groups: RuleGroups, n_likeliest: int | None, seen: Tensor | None
    ) -> Tensor:
        if seen is not None:
            torch._dynamo.mark_static_address(seen)
        return self._compiled_draw(inputs, groups, n_likeliest, seen)

    def _forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens.unsqueeze(1), self.cache)[:, -1]


class FixedSlots(Slots):
    """Slots whose tensors keep their shapes and addresses from pass to pass.

    All slots are visible in every pass, because reading the longest length would wait for the GPU. The capacity is not
    checked, so the caller must not exceed it.
    """

    def __init__(self, batch_size: int, capacity: int, *, device: torch.device) -> None:
        """Start with empty rows. The arguments are the same as the arguments of Slots."""
        super().__init__(batch_size, capacity, device=device)
        self.lengths = torch.zeros(batch_size, dtype=torch.int64, device=device)  # (B,)

    def set_lengths(self, lengths: Sequence[int]) -> None:
        """Keep the first lengths[b] positions of each row b. The next pass continues after these positions."""
        assert isinstance(self.lengths, Tensor)
        self.lengths.copy_(torch.tensor(lengths))

    def reserve(self, n_tokens: int) -> None:
        """Reserve the next n_tokens slots of each row for one forward pass."""
        assert isinstance(self.lengths, Tensor)
        self._take_index(self.lengths, n_tokens, self.capacity)
        self.lengths += n_tokens
