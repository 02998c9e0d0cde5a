"""The decoding loop: many samples in one batch, each as if it were alone."""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gptmini.generation.compiled import compiled, fixed_cache
from gptmini.generation.rules import Rules, choose
from gptmini.model import GPT
from gptmini.model.gpt_cache import GPTCache
from gptmini.model.step import DecodingStep
from gptmini.user_error import UserError

UNIFORMS_AT_ONCE = 64  # a call for each number would cost as much as a layer of a small model


def uniforms(seed: int, stream: int) -> Iterator[float]:
    """Endless random numbers in [0, 1): the same for a seed and the number of a stream, whatever else is drawn.

    The generator is seeded with a hash of both, because any sum of multiples of the two would give the same numbers for
    some other seed and stream.
    """
    digest = hashlib.blake2b(repr((seed, stream)).encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    while True:
        numbers = torch.rand(UNIFORMS_AT_ONCE, dtype=torch.float64, generator=generator)
        yield from numbers.tolist()


@dataclass
class Sample:
    """A sample that has a row of the batch."""

    number: int
    ids: list[int]  # of the prompt and of what was drawn
    draws: Iterator[float]  # its random numbers


class Decoder:
    """Draws the tokens of many samples, batch_size at a time; a sample that ends makes room for one that waits.

    A sample may outgrow the context: when the cache is full, the newest half of what it holds is encoded again in one
    pass. The text of a sample follows from its prompt, the rules, the seed and its stream, not from the other samples.
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
    ) -> None:
        """Reserve the cache; no token is drawn yet.

        Args:
            model: in eval mode.
            prompts: ids to continue, at least one each, all in the model's vocabulary; of a longer prompt the newest
                longest_input ids are seen.
            rules: how tokens are drawn; the caller ends a sample after max_new_tokens, for which there is room.
            streams: number of each prompt's random stream, one for each prompt.
            seed: of all streams.
            batch_size: most samples at a time, at least 1.
            log_probabilities, compile: as for generate_stream.
        """
        self.model = model
        self.prompts = prompts
        self.rules = rules
        self.seed = seed
        self.streams = streams
        self.log_probabilities = log_probabilities

        # Which samples wait, and which sample each row of the batch draws; None for a free row.
        self.waiting = iter(range(len(prompts)))
        n_rows = min(batch_size, len(prompts))
        self.rows: list[Sample | None] = [None] * n_rows
        self.lengths = [0] * n_rows  # positions that the cache holds of each row

        # Rules compute in float64, which Apple's GPUs do not have.
        self.device = model.embedding.weight.device
        self.rules_device = self.device
        if self.device.type == "mps":
            self.rules_device = torch.device("cpu")

        # Ids that prompt and sample hold, bool (B, V); only the repetition penalty asks for them.
        self.seen: Tensor | None = None
        if rules.repetition_penalty != 1:
            shape = (n_rows, model.config.vocab_size)
            self.seen = torch.zeros(shape, dtype=torch.bool, device=self.rules_device)

        # Each row has room for the longest prompt and its sample, as far as the context goes.
        capacity = model.config.longest_input
        longest = max((len(prompt) for prompt in prompts), default=0)
        if rules.max_new_tokens is not None:
            capacity = min(capacity, longest + rules.max_new_tokens)

        self._score: Callable[[Tensor], Tensor]
        self._draw: Callable[..., Tensor] = _draw
        if compile:
            self.cache = fixed_cache(model, n_rows, capacity)
            self._score = self._score_by_forward
            self._draw = compiled(_draw, self.seen)
        else:
            self.cache = model.new_cache(n_rows, capacity)
            self._score = DecodingStep(model, self.cache)

    @torch.inference_mode()
    def draw(self) -> list[tuple[int, int, float | None]]:
        """Draw the next token of every sample in the batch: (sample, id, its log-probability under the model alone).

        Returns an empty list when every sample has ended. Raises UserError: the model's logits are not finite.
        """
        if not self._refill():
            return []

        active = [(row, sample) for row, sample in enumerate(self.rows) if sample is not None]
        newest = [0] * len(self.rows)
        uniform = [0.0] * len(self.rows)
        for row, sample in active:
            newest[row] = sample.ids[-1]
            uniform[row] = next(sample.draws)

        # A token costs one copy to a GPU, from memory that the GPU reads by itself, and one back, which waits for it.
        inputs = torch.tensor(
            [newest, uniform],
            dtype=torch.float64,
            pin_memory=self.rules_device.type == "cuda",
        )  # (2, B)
        drawn = self._draw(
            self._score,
            self.rules,
            self.log_probabilities,
            inputs.to(self.rules_device, non_blocking=True),
            self.device,
            self.seen,
        )
        tokens, highest, *of_tokens = drawn.tolist()
        log_probabilities = of_tokens[0] if of_tokens else [None] * len(tokens)
        self.lengths = [length + 1 for length in self.lengths]

        if not all(math.isfinite(highest[row]) for row, _ in active):
            raise UserError(
                "logits must be finite, got others: "
                "the model has diverged or its checkpoint is damaged"
            )

        chosen = []
        for row, sample in active:
            token = int(tokens[row])
            sample.ids.append(token)
            chosen.append((sample.number, token, log_probabilities[row]))
        return chosen

    def end(self, number: int) -> None:
        """Draw no more for the sample of this number, which is in the batch."""
        for row, sample in enumerate(self.rows):
            if sample is not None and sample.number == number:
                self.rows[row] = None

    def _refill(self) -> bool:
        """Give free rows to waiting samples, and encode the newest half of full rows again; False if none is left."""
        longest_input = self.model.config.longest_input
        windows = {}  # ids to encode, by row
        for row, sample in enumerate(self.rows):
            if sample is None:
                sample = self.rows[row] = self._begin(row)
                if sample is not None:
                    windows[row] = sample.ids[-longest_input:]
            elif self.lengths[row] == longest_input:
                n_kept = max(1, longest_input // 2)
                windows[row] = sample.ids[-n_kept:]
        if windows:
            _encode(self.model, self.cache, windows)

        # A free row is decoded with the others, so that it too comes to the end of the cache.
        if windows or self.cache.slots.capacity in self.lengths:
            self._set_lengths(windows)
        return any(sample is not None for sample in self.rows)

    def _begin(self, row: int) -> Sample | None:
        """The next sample that waits, to be drawn in a row; None if none waits."""
        number = next(self.waiting, None)
        if number is None:
            return None

        ids = list(self.prompts[number])
        if self.seen is not None:
            self.seen[row] = False
            self.seen[row, ids] = True
        return Sample(number, ids, uniforms(self.seed, self.streams[number]))

    def _set_lengths(self, windows: dict[int, list[int]]) -> None:
        """Let each row that was encoded go on after its window, and each free row begin anew."""
        for row, sample in enumerate(self.rows):
            if row in windows:
                self.lengths[row] = len(windows[row]) - 1  # the next step takes the newest token
            elif sample is None:
                self.lengths[row] = 0
        self.cache.slots.set_lengths(self.lengths)

    def _score_by_forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, V) after int64 (B,), by the model's own forward."""
        return self.model(tokens.unsqueeze(1), self.cache)[:, -1]


def _encode(model: GPT, cache: GPTCache, windows: dict[int, list[int]]) -> None:
    """Fill rows of the cache with all but the newest token of their windows, in one pass."""
    known = [torch.tensor(window[:-1], dtype=torch.int64) for window in windows.values()]

    # What pads a shorter row stands to its right, where it changes nothing before it.
    tokens = pad_sequence(known, batch_first=True)  # (n, T)
    n_rows, n_tokens = tokens.shape
    own = model.new_cache(n_rows, n_tokens)
    if tokens.numel():
        model.hidden(tokens.to(cache.slots.device), own)
    cache.fill(list(windows), own, n_tokens)


def _draw(
    score: Callable[[Tensor], Tensor],
    rules: Rules,
    log_probabilities: bool,
    inputs: Tensor,
    device: torch.device,
    seen: Tensor | None,
) -> Tensor:
    """Score the newest tokens and draw those after them, which are marked in seen.

    Args:
        score: returns logits (B, V) after tokens, int64 (B,), on the device.
        rules, log_probabilities, seen: as for Decoder and choose.
        inputs: newest token and random number of each row, float64 (2, B), on the device of the rules.
        device: that of the model.

    Returns:
        float64 (2, B) or (3, B), in one tensor so that it is read at once; float64 holds every id exactly. Rows: the
        tokens; the highest logit, which shows whether the logits are finite; the log-probabilities of the tokens under
        the model alone, if asked for.
    """
    tokens = inputs[0].long().to(device)  # (B,)
    uniform = inputs[1]  # (B,)
    logits = score(tokens).to(inputs.device)  # (B, V)
    chosen = choose(logits, uniform, rules, seen)  # (B,); V of a row of nan
    chosen = chosen.clamp(max=logits.size(-1) - 1)
    if seen is not None:
        seen.scatter_(1, chosen.unsqueeze(1), True)

    drawn = [chosen.double(), logits.amax(dim=-1).double()]  # (B,) each
    if log_probabilities:
        all_tokens = logits.double().log_softmax(dim=-1)  # (B, V)
        drawn.append(all_tokens.gather(-1, chosen.unsqueeze(1)).squeeze(1))  # (B,)
    return torch.stack(drawn)
