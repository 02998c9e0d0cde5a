"""The decoding loop: many samples in one batch, independent of each other."""

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

UNIFORMS_AT_ONCE = 64  # one call per number would take as long as a layer of a small model


def uniforms(seed: int, stream: int) -> Iterator[float]:
    """Yield an endless series of random numbers in [0, 1). It depends only on the seed and the number of the stream.

    The generator's seed is a hash of seed and stream. With a linear combination of them instead, different pairs of
    seed and stream would give the same numbers.
    """
    digest = hashlib.blake2b(repr((seed, stream)).encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    while True:
        numbers = torch.rand(UNIFORMS_AT_ONCE, dtype=torch.float64, generator=generator)
        yield from numbers.tolist()


@dataclass
class Sample:
    """A sample that occupies a row of the batch."""

    number: int
    ids: list[int]  # prompt and drawn tokens
    draws: Iterator[float]  # random numbers of this sample


class Decoder:
    """Generates many samples, batch_size samples at a time. When a sample ends, the next sample takes its row.

    A sample may exceed the context. When its row is full, the newest half of its tokens is encoded again in one pass. A
    sample depends on its prompt, the rules, the seed and its stream, but not on other samples.
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
        """Allocate the cache. draw() generates the first token.

        Args:
            model: a GPT in eval mode.
            prompts: ids to continue. Each prompt has at least one id, and all ids are in the model's vocabulary. If a
                prompt is too long, the model sees only its newest longest_input ids.
            rules: the sampling rules. The caller must end a sample after max_new_tokens tokens, because this number
                determines the cache size.
            streams: number of the random stream of each prompt.
            seed: seed of all streams.
            batch_size: maximum number of samples at a time, at least 1.
            log_probabilities, compile: see generate_stream.
        """
        self.model = model
        self.prompts = prompts
        self.rules = rules
        self.seed = seed
        self.streams = streams
        self.log_probabilities = log_probabilities

        # The numbers of the waiting samples, and the sample in each row of the batch (None: the row is free).
        self.waiting = iter(range(len(prompts)))
        n_rows = min(batch_size, len(prompts))
        self.rows: list[Sample | None] = [None] * n_rows
        self.lengths = [0] * n_rows  # number of positions in the cache, for each row

        # Rules compute in float64. Apple's GPUs do not support float64.
        self.device = model.embedding.weight.device
        self.rules_device = self.device
        if self.device.type == "mps":
            self.rules_device = torch.device("cpu")

        # Ids that occur in the prompt or the sample, bool (B, V); only the repetition penalty needs them.
        self.seen: Tensor | None = None
        if rules.repetition_penalty != 1:
            shape = (n_rows, model.config.vocab_size)
            self.seen = torch.zeros(shape, dtype=torch.bool, device=self.rules_device)

        # Each row can hold the longest prompt and its sample, but not more than the context.
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
        """Draw the next token of every sample in the batch.

        Returns triples (number of the sample, id, log-probability under the model before any rule), or an empty list
        when all samples have ended. Raises UserError if the logits of the model are not finite.
        """
        if not self._refill():
            return []

        active = [(row, sample) for row, sample in enumerate(self.rows) if sample is not None]
        newest = [0] * len(self.rows)
        uniform = [0.0] * len(self.rows)
        for row, sample in active:
            newest[row] = sample.ids[-1]
            uniform[row] = next(sample.draws)

        # Each step needs a copy to the GPU and a copy back. The first copy uses pinned memory, so it does not wait.
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
                "logits must be finite, got NaN or infinity; "
                "the model has diverged or its checkpoint is damaged"
            )

        chosen = []
        for row, sample in active:
            token = int(tokens[row])
            sample.ids.append(token)
            chosen.append((sample.number, token, log_probabilities[row]))
        return chosen

    def end(self, number: int) -> None:
        """End a sample of the batch: free its row."""
        for row, sample in enumerate(self.rows):
            if sample is not None and sample.number == number:
                self.rows[row] = None

    def _refill(self) -> bool:
        """Give free rows to waiting samples. For full rows, encode the newest half of the tokens again.

        Returns False if all samples have ended.
        """
        longest_input = self.model.config.longest_input
        windows = {}  # ids to encode, by row
        for row, sample in enumerate(self.rows):
            if sample is None:
                sample = self.rows[row] = self._start_next(row)
                if sample is not None:
                    windows[row] = sample.ids[-longest_input:]
            elif self.lengths[row] == longest_input:
                n_kept = max(1, longest_input // 2)
                windows[row] = sample.ids[-n_kept:]
        if windows:
            _encode(self.model, self.cache, windows)

        # A free row is decoded with the other rows, so it can reach the end of the cache, too.
        if windows or self.cache.slots.capacity in self.lengths:
            self._set_lengths(windows)
        return any(sample is not None for sample in self.rows)

    def _start_next(self, row: int) -> Sample | None:
        """Return the next waiting sample, prepared for this row; None if all samples have started."""
        number = next(self.waiting, None)
        if number is None:
            return None

        ids = list(self.prompts[number])
        if self.seen is not None:
            self.seen[row] = False
            self.seen[row, ids] = True
        return Sample(number, ids, uniforms(self.seed, self.streams[number]))

    def _set_lengths(self, windows: dict[int, list[int]]) -> None:
        """Continue each encoded row after its window, and restart each free row at 0."""
        for row, sample in enumerate(self.rows):
            if row in windows:
                self.lengths[row] = len(windows[row]) - 1  # the next step takes the newest token
            elif sample is None:
                self.lengths[row] = 0
        self.cache.slots.set_lengths(self.lengths)

    def _score_by_forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (B, V) after tokens int64 (B,), computed by the model's forward."""
        return self.model(tokens.unsqueeze(1), self.cache)[:, -1]


def _encode(model: GPT, cache: GPTCache, windows: dict[int, list[int]]) -> None:
    """Encode the windows, each without its newest token, in one pass. Store the result in their rows of the cache."""
    known = [torch.tensor(window[:-1], dtype=torch.int64) for window in windows.values()]

    # Shorter rows are padded on the right: causal attention keeps the padding from changing earlier positions.
    tokens = pad_sequence(known, batch_first=True)  # (n, T)
    n_rows, n_tokens = tokens.shape
    encoded = model.new_cache(n_rows, n_tokens)
    if tokens.numel():
        model.hidden(tokens.to(cache.slots.device), encoded)
    cache.fill(list(windows), encoded, n_tokens)


def _draw(
    score: Callable[[Tensor], Tensor],
    rules: Rules,
    log_probabilities: bool,
    inputs: Tensor,
    device: torch.device,
    seen: Tensor | None,
) -> Tensor:
    """Compute the logits after the newest tokens, draw the next tokens, and mark them in seen.

    Args:
        score: function that returns the logits (B, V) after tokens, int64 (B,), on the device.
        rules, log_probabilities, seen: see Decoder and choose.
        inputs: newest token and random number of each row, float64 (2, B), on the device of the rules.
        device: device of the model.

    Returns float64 (2, B) or (3, B). A single tensor needs only a single copy. float64 represents every id exactly. The
    rows are:

    - the drawn tokens
    - the highest logits, which show whether the logits are finite
    - if log_probabilities: the log-probabilities of the tokens under the model before any rule
    """
    tokens = inputs[0].long().to(device)  # (B,)
    uniform = inputs[1]  # (B,)
    logits = score(tokens).to(inputs.device)  # (B, V)
    chosen = choose(logits, uniform, rules, seen)  # (B,); V for a row of NaN
    chosen = chosen.clamp(max=logits.size(-1) - 1)
    if seen is not None:
        seen.scatter_(1, chosen.unsqueeze(1), True)

    drawn = [chosen.double(), logits.amax(dim=-1).double()]  # (B,) each
    if log_probabilities:
        all_tokens = logits.double().log_softmax(dim=-1)  # (B, V)
        drawn.append(all_tokens.gather(-1, chosen.unsqueeze(1)).squeeze(1))  # (B,)
    return torch.stack(drawn)
