"""Compile a decoding step. On a GPU, capture its kernels in a CUDA graph, with a cache whose addresses never change."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gptmini.attention import Slots
from gptmini.generation.rules import RuleGroups, Rules
from gptmini.generation.session import ATTENTION, Session
from gptmini.model import GPT, GPTCache
from gptmini.tokenizer import Tokenizer

# Each session compiles its own sizes. By default, torch fails at the ninth.
MOST_COMPILED = 256


class CompiledSession(Session):
    """A session whose step is compiled. A step advances all rows. If their rules differ, it is not compiled.

    On a GPU, one CUDA graph launches all kernels of a step, from the newest tokens to the drawn ones.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer, **options: Any) -> None:
        """Allocate the cache. The arguments are those of Session."""
        super().__init__(model, tokenizer, **options)
        # dynamic=False: each batch size is compiled, because a CUDA graph has fixed shapes.
        self._compiled_draw = torch.compile(super()._draw, fullgraph=True, dynamic=False)
        # By the rules, n_likeliest, and whether there are seen tokens.
        self._graphs: dict[tuple[Rules, int | None, bool], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._inputs = torch.zeros(2, len(self.rows), dtype=torch.float64, device=self.rules_device)

    def _new_cache(self, batch_size: int, capacity: int) -> GPTCache:
        weight = self.model.embedding.weight
        self._slots = FixedSlots(batch_size, capacity, device=weight.device)
        return GPTCache(self.model.config, self._slots, dtype=weight.dtype)

    def _span_of(self, first: int, last: int) -> slice:
        return slice(0, len(self.rows))

    def _start(self, span: slice, lengths: Sequence[int]) -> None:
        self._slots.set_lengths(lengths)

    def _draw(
        self, inputs: Tensor, groups: RuleGroups, n_likeliest: int | None, seen: Tensor | None
    ) -> Tensor:
        if len(groups) > 1:
            return super()._draw(inputs, groups, n_likeliest, seen)
        with torch._dynamo.config.patch(recompile_limit=MOST_COMPILED):
            if not inputs.is_cuda:
                return self._compiled_draw(inputs, groups, n_likeliest, seen)

            with torch.cuda.device(self.device):
                self._inputs.copy_(inputs)
                key = (groups[0][0], n_likeliest, seen is None)
                if key not in self._graphs:
                    self._graphs[key] = self._capture(groups, n_likeliest, seen)
                graph, drawn = self._graphs[key]
                graph.replay()
                return drawn

    def _capture(
        self, groups: RuleGroups, n_likeliest: int | None, seen: Tensor | None
    ) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Return the CUDA graph of a step with these groups, and the tensor to which it writes the result of draw.

        A graph needs kernels that have run before. So first run two steps, because the second may compile again, and
        undo what they changed. The keys and values of these steps are in slots that the next step writes.
        """
        changed = [self._slots.lengths, *([] if seen is None else [seen])]
        values = [tensor.clone() for tensor in changed]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        # The shapes of a step never change, so cuDNN needs only one plan.
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, *ATTENTION]):
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self._compiled_draw(self._inputs, groups, n_likeliest, seen)
                    for tensor, value in zip(changed, values, strict=True):
                        tensor.copy_(value)
            torch.cuda.current_stream().wait_stream(stream)

            # Other threads may allocate memory during the capture.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
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
