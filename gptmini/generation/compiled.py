"""Compile a decoding step. On a GPU, capture its kernels in a CUDA graph, with a cache whose addresses never change."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gptmini.attention import Slots
from gptmini.generation.rules import RuleGroups, Rules
from gptmini.generation.sample import Sample
from gptmini.generation.session import Session
from gptmini.model import GPT, GPTCache
from gptmini.tokenizer import Tokenizer

MOST_COMPILED = 256


class CompiledSession(Session):
    """A session whose step is compiled. A step advances all rows.

    On a GPU, one CUDA graph launches all kernels of a step, from the newest tokens to the drawn ones. There is a graph
    for each combination of rules and rows.
    """

    attention_kernels = None  # all: the shapes never change, so cuDNN builds one plan

    def __init__(self, model: GPT, tokenizer: Tokenizer, **options: Any) -> None:
        """Allocate the cache. The arguments are those of Session."""
        super().__init__(model, tokenizer, **options)
        # Each session compiles its own sizes. By default, torch refuses the ninth.
        torch._dynamo.config.recompile_limit = MOST_COMPILED
        # dynamic=False: each batch size is compiled, because a CUDA graph has fixed shapes.
        self._compiled_draw = torch.compile(super()._draw, fullgraph=True, dynamic=False)
        self._groups: dict[tuple[Rules | None, ...], RuleGroups] = {}
        # By the place of the groups in memory, n_likeliest, and whether there are seen tokens.
        self._graphs: dict[tuple[int, int | None, bool], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._inputs = torch.zeros(2, len(self.rows), dtype=torch.float64, device=self.rules_device)

    def _new_cache(self, batch_size: int, capacity: int) -> GPTCache:
        weight = self.model.embedding.weight
        self._slots = FixedSlots(batch_size, capacity, device=weight.device)
        return GPTCache(self.model.config, self._slots, dtype=weight.dtype)

    def _span_of(self, first: int, last: int) -> slice:
        return slice(0, len(self.rows))

    def _start(self, span: slice, lengths: Sequence[int]) -> None:
        self._slots.set_lengths(lengths)

    def _groups_of(self, samples: list[Sample | None]) -> RuleGroups:
        """Return the same object for the same rules in the same rows, because a graph reads the rows at its address."""
        rules = tuple(sample.request.rules if sample else None for sample in samples)
        different = set(rules) - {None}
        key = tuple(different) if len(different) == 1 else rules
        if key not in self._groups:
            self._groups[key] = super()._groups_of(samples)
        return self._groups[key]

    def _draw(
        self, inputs: Tensor, groups: RuleGroups, n_likeliest: int | None, seen: Tensor | None
    ) -> Tensor:
        if not inputs.is_cuda:
            return self._compiled_draw(inputs, groups, n_likeliest, seen)

        self._inputs.copy_(inputs)
        key = (id(groups), n_likeliest, seen is None)
        if key not in self._graphs:
            self._graphs[key] = self._capture(groups, n_likeliest, seen)
        graph, drawn = self._graphs[key]
        graph.replay()
        return drawn

    def _capture(
        self, groups: RuleGroups, n_likeliest: int | None, seen: Tensor | None
    ) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Return the CUDA graph of a step with these groups, and the tensor to which it writes the result of draw.

        A graph needs kernels that have run before, so first run two steps, and undo what they changed.
        """
        changed = [self._slots.lengths, *([] if seen is None else [seen])]
        values = [tensor.clone() for tensor in changed]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._compiled_draw(self._inputs, groups, n_likeliest, seen)
                for tensor, value in zip(changed, values, strict=True):
                    tensor.copy_(value)
        torch.cuda.current_stream().wait_stream(stream)

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            drawn = self._compiled_draw(self._inputs, groups, n_likeliest, seen)
        return graph, drawn


class FixedSlots(Slots):
    """Slots whose tensors keep their shapes and addresses from pass to pass.

    All slots are visible in every pass, because reading the longest length would wait for the GPU. The capacity is not
    checked, so the caller must not exceed it.
    """

    def __init__(self, batch_size: int, capacity: int, *, device: torch.device) -> None:
        """Start with empty rows. The arguments are the same as the arguments of Slots."""
        super().__init__(batch_size, capacity, device=device)
        self.lengths: Tensor = torch.zeros(batch_size, dtype=torch.int64, device=device)  # (B,)

    def set_lengths(self, lengths: Sequence[int]) -> None:
        """Keep the first lengths[b] positions of each row b. The next pass continues after these positions."""
        self.lengths.copy_(torch.tensor(lengths))

    def reserve(self, n_tokens: int) -> None:
        """Reserve the next n_tokens slots of each row for one forward pass."""
        self._take_index(self.lengths, n_tokens, self.capacity)
        self.lengths += n_tokens
