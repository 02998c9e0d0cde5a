"""The decoding loop: many samples in one batch, each as if it were alone."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gptmini.attention import KVCache
from gptmini.checks import UserError, whole
from gptmini.generation.rules import Rules, choose
from gptmini.model import GPT
from gptmini.model.step import DecodingStep


def uniforms(seed: int, stream: int) -> Iterator[float]:
    """Endless random numbers in [0, 1): the same for a seed and the number of a stream, whatever else is drawn."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + stream) % 2**63)  # a prime apart: neighbours differ
    while True:  # 64 at once, because a call for each would cost as much as a small model's layer
        yield from torch.rand(64, dtype=torch.float64, generator=generator).tolist()


class Decoder:
    """Draws the tokens of many samples, batch_size at a time; who ends makes room for who waits.

    A sample's text may outgrow the context: when the cache is full, the newest half of what it holds is encoded again
    in one pass. What a sample becomes follows from its prompt, the rules, the seed and its stream, not from the others.
    """

    def __init__(
        self,
        model: GPT,
        prompts: Sequence[Sequence[int]],
        rules: Rules,
        *,
        streams: Sequence[int],
        seed: int = 0,
        batch_size: int = 1,
        log_probabilities: bool = False,
        compile: bool = False,
        int8: bool = False,
    ) -> None:
        """Reserve the cache; no token is drawn yet. The model is in eval mode; options are as for generate_stream.

        Args:
            prompts: ids to continue, at least one each; of a longer one the newest context_length are seen.
            rules: how tokens are drawn; the caller ends a sample after max_new_tokens, for which there is room.
            streams: number of each prompt's random stream, one for each; seed is of all streams.

        Raises UserError: a number out of range, an empty prompt, or an id in it that the model has not.
        """
        whole("seed", seed, least=None)
        whole("batch_size", batch_size)
        weight = model.embedding.weight
        if int8 and (compile or weight.dtype != torch.float32 or weight.device.type != "cpu"):
            raise UserError(f"int8 needs float32, a CPU, no compile, got {weight.dtype}, {weight.device}, {compile=}")
        for prompt in prompts:
            if not prompt or not 0 <= min(prompt) <= max(prompt) < model.config.vocab_size:
                got = f"{min(prompt)} to {max(prompt)}" if prompt else "none"
                highest = model.config.vocab_size - 1
                raise UserError(f"a prompt must hold at least one id, all from 0 to {highest}, got {got}")

        self.model = model
        self.prompts = prompts
        self.seed = seed
        self.streams = streams
        self.draws: dict[int, Iterator[float]] = {}  # of the samples in the batch
        self.waiting = list(reversed(range(len(prompts))))
        self.rows: list[int | None] = [None] * min(batch_size, len(prompts))  # the sample in each row of the batch
        self.ids: dict[int, list[int]] = {}  # prompt and tokens of the samples in the batch
        self.lengths = [0] * len(self.rows)  # positions that the cache holds of each row

        longest = max((len(prompt) for prompt in prompts), default=0)
        n_slots = None if rules.max_new_tokens is None else longest + rules.max_new_tokens
        self.device = weight.device
        self.cache = model.new_cache(len(self.rows), n_slots, static=compile)
        self.rules_device = self.device if self.device.type != "mps" else torch.device("cpu")  # where float64 is
        seen = torch.zeros(len(self.rows), model.config.vocab_size, dtype=torch.bool, device=self.rules_device)
        self.seen = seen if rules.repetition_penalty != 1 else None  # (B, V), ids that prompt and sample hold

        if compile:  # one graph, recorded over tensors that stay where they are
            for tensor in (self.cache.slots.lengths, *self.cache.tensors, *([] if self.seen is None else [self.seen])):
                torch._dynamo.mark_static_address(tensor)
            compiled = torch.compile(_draw, mode="reduce-overhead", fullgraph=True)
            score, draw = lambda tokens: model(tokens.unsqueeze(1), self.cache)[:, -1], compiled
        else:
            score, draw = DecodingStep(model, self.cache, int8=int8), _draw
        self._draw = partial(draw, score, rules, log_probabilities)

    @torch.inference_mode()
    def draw(self) -> list[tuple[int, int, float | None]]:
        """Draw the next token of every sample in the batch: (sample, id, its log-probability under the model alone).

        Returns an empty list when every sample has ended. Raises UserError: the model's logits are not finite.
        """
        if not self._refill():
            return []
        active = [(row, sample) for row, sample in enumerate(self.rows) if sample is not None]
        newest = [0 if sample is None else self.ids[sample][-1] for sample in self.rows]
        uniform = [0.0 if sample is None else next(self.draws[sample]) for sample in self.rows]
        given = torch.tensor(newest, device=self.device)
        chances = torch.tensor(uniform, dtype=torch.float64, device=self.rules_device)
        drawn, highest, log_probabilities = self._draw(given, chances, self.seen)
        tokens, highest = drawn.tolist(), highest.tolist()
        known = [None] * len(tokens) if log_probabilities is None else log_probabilities.tolist()
        self.lengths = [length + 1 for length in self.lengths]
        if not all(math.isfinite(highest[row]) for row, _ in active):
            raise UserError("logits must be finite, got others: the model has diverged or its checkpoint is damaged")
        for row, sample in active:
            self.ids[sample].append(tokens[row])
        return [(sample, tokens[row], known[row]) for row, sample in active]

    def end(self, sample: int) -> None:
        """Draw no more for a sample in the batch."""
        self.rows[self.rows.index(sample)] = None
        del self.ids[sample], self.draws[sample]

    def _refill(self) -> bool:
        """Give free rows to waiting samples and full rows their newest half; False if no sample is left."""
        context_length, windows = self.model.config.context_length, {}
        for row, sample in enumerate(self.rows):
            if sample is None and self.waiting:
                sample = self.rows[row] = self.waiting.pop()
                self.ids[sample] = list(self.prompts[sample])
                self.draws[sample] = uniforms(self.seed, self.streams[sample])
                windows[row] = self.ids[sample][-context_length:]
                if self.seen is not None:
                    self.seen[row] = False
                    self.seen[row, self.ids[sample]] = True
            elif sample is not None and self.lengths[row] == context_length:
                windows[row] = self.ids[sample][-max(1, context_length // 2) :]
        if windows:
            _encode(self.model, self.cache, windows)
        if windows or self.cache.slots.capacity in self.lengths:  # a row that nobody needs has come to the end
            done = {row: len(window) - 1 for row, window in windows.items()}  # the newest token is the next step's
            done |= {row: 0 for row, sample in enumerate(self.rows) if sample is None}
            self.lengths = [done.get(row, length) for row, length in enumerate(self.lengths)]
            self.cache.slots.set_lengths(self.lengths)
        return bool(self.ids)


def _encode(model: GPT, cache: KVCache, windows: dict[int, list[int]]) -> None:
    """Fill rows of the cache with all but the newest token of their windows, in one pass."""
    known = [torch.tensor(window[:-1], dtype=torch.int64) for window in windows.values()]
    tokens = pad_sequence(known, batch_first=True)  # (n, T); what pads a row on the right changes nothing before it
    own = model.new_cache(*tokens.shape)
    if tokens.numel():
        model.hidden(tokens.to(cache.slots.device), own)
    cache.fill(list(windows), own, tokens.size(1))


def _draw(
    score: Callable, rules: Rules, log_probabilities: bool, tokens: Tensor, uniform: Tensor, seen: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tokens after the newest, highest logits, and log-probabilities if asked for, (B,) each; marks what is seen."""
    logits, drawn_at = score(tokens).to(uniform.device), None  # (B, V)
    drawn = choose(logits, uniform, rules, seen).clamp(max=logits.size(-1) - 1)  # a row of nan yields V
    if seen is not None:
        seen.scatter_(1, drawn.unsqueeze(1), True)
    if log_probabilities:
        drawn_at = logits.double().log_softmax(dim=-1).gather(-1, drawn.unsqueeze(1)).squeeze(1)
    return drawn, logits.amax(dim=-1), drawn_at
