"""The decoding loop. It generates many samples in one batch, and the samples are independent of each other."""

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gptmini.generation.compiled import compiled, fixed_cache
from gptmini.generation.rules import Rules, choose
from gptmini.model import GPT
from gptmini.model.gpt_cache import GPTCache
from gptmini.model.step import DecodingStep
from gptmini.tokenizer.chat.marks import common_prefix_length

NOT_FINITE = -1  # instead of a token
UNIFORMS_AT_ONCE = 64  # random numbers per call; one call per number would take as long as a layer of a small model


def uniforms(seed: int, stream: int) -> Iterator[float]:
    """Yield an endless series of random numbers in [0, 1). The series depends only on the seed and the stream's number.

    The generator's seed is a hash of seed and stream. With a linear combination of seed and stream
    instead, different pairs of seed and stream would give the same numbers.
    """
    digest = hashlib.blake2b(repr((seed, stream)).encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    while True:
        numbers = torch.rand(UNIFORMS_AT_ONCE, dtype=torch.float64, generator=generator)
        yield from numbers.tolist()


@dataclass(eq=False, kw_only=True)
class Sample:
    """A sample that waits for a row of the batch or occupies one."""

    number: int
    ids: list[int]  # prompt and drawn tokens
    rules: Rules
    draws: Iterator[float]  # random numbers of this sample
    log_probabilities: bool
    n_likeliest: int


class Drawn(NamedTuple):
    """A token that was drawn for a sample. Log-probabilities are in nats, from the model's logits before any rule."""

    sample: int  # number of the sample
    token: int  # NOT_FINITE if the logits are not finite; the caller must then end the sample
    log_probability: float | None  # None if the sample did not ask for log-probabilities
    # The n_likeliest most probable tokens, each with its log-probability. The most probable token is first.
    likeliest: list[tuple[int, float]]


class Decoder:
    """Generates many samples, batch_size samples at a time. When a sample ends, the next sample takes its row.

    Samples may be added at any time. A sample may exceed the context: when its row of the cache is full, the newest
    half of its tokens is encoded a second time in one pass. A sample depends on its prompt, its rules, its seed and its
    stream, but not on other samples.
    """

    def __init__(
        self,
        model: GPT,
        *,
        batch_size: int = 1,
        capacity: int | None = None,
        reuse: bool = False,
        compile: bool = False,
    ) -> None:
        """Allocate the cache.

        Args:
            model: a GPT in eval mode.
            batch_size: maximum number of samples at a time, at least 1.
            capacity: tokens per row of the cache, at most the context. None: the context. The model never sees more
                tokens at a time.
            reuse: whether a row keeps the keys and values of a sample that ended. A later sample that starts with the
                same ids, such as the next turn of a chat, then encodes only the rest of its prompt.
            compile: see generate_stream. If compile is true, all samples must have the same rules.
        """
        self.model = model
        self.reuse = reuse
        self.is_compiled = compile

        self.waiting: deque[Sample] = deque()
        # The sample in each row. None: the row is free.
        self.rows: list[Sample | None] = [None] * batch_size
        # The ids whose keys and values each row holds.
        self.encoded: list[list[int]] = [[] for _ in self.rows]
        # Number of positions of each row in the cache. A free row may count positions that are no longer valid.
        self.lengths = [0] * batch_size
        self._n_added = 0
        # Number of samples that had ended when each row became free.
        self._released = [0] * batch_size
        self._n_ended = 0

        # Rules compute in float64. Apple's GPUs do not support float64.
        self.device = model.embedding.weight.device
        self.rules_device = self.device
        if self.device.type == "mps":
            self.rules_device = torch.device("cpu")

        # Ids that occur in the prompt or the sample, bool (B, V); only the repetition penalty needs these ids.
        self.seen: Tensor | None = None

        longest = model.config.longest_input
        capacity = longest if capacity is None else min(capacity, longest)
        new_cache = fixed_cache if compile else GPT.new_cache
        self.cache: GPTCache = new_cache(model, batch_size, capacity)

        # The rows from the first active row to the last active row, and the functions that advance these rows.
        self._span = slice(0, 0)
        self._slots = self.cache.slots
        self._score: Callable[[Tensor], Tensor] = self._score_by_forward
        self._draw: Callable[..., Tensor] | None = None if compile else _draw

    def add(
        self,
        prompt: Sequence[int],
        rules: Rules,
        *,
        seed: int = 0,
        stream: int = 0,
        log_probabilities: bool = False,
        n_likeliest: int = 0,
    ) -> int:
        """Add a sample. The sample starts as soon as a row is free. Return the number of the sample, counted from 0.

        Args:
            prompt: ids to continue, at least one, all in the model's vocabulary. If the prompt is too long, the model
                sees only its newest ids.
            rules: how to draw tokens. The caller must end the sample after max_new_tokens.
            seed, stream: these choose the random numbers; see uniforms.
            log_probabilities: whether to return the log-probability of each drawn token.
            n_likeliest: how many of the most probable tokens to return with each drawn token.
        """
        if rules.repetition_penalty != 1 and self.seen is None:
            shape = (len(self.rows), self.model.config.vocab_size)
            self.seen = torch.zeros(shape, dtype=torch.bool, device=self.rules_device)

        number = self._n_added
        self._n_added += 1
        self.waiting.append(
            Sample(
                number=number,
                ids=list(prompt),
                rules=rules,
                draws=uniforms(seed, stream),
                log_probabilities=log_probabilities,
                n_likeliest=min(n_likeliest, self.model.config.vocab_size),
            )
        )
        return number

    @torch.inference_mode()
    def draw(self) -> list[Drawn]:
        """Draw the next token of every sample in the batch. Return an empty list if all samples have ended."""
        active = self._refill()
        if not active:
            return []

        first = self._span.start
        n_rows = self._span.stop - first
        newest = [0] * n_rows
        uniform = [0.0] * n_rows
        for row, sample in active:
            newest[row - first] = sample.ids[-1]
            uniform[row - first] = next(sample.draws)

        # Each step needs a copy to the GPU and a copy back. The first copy uses pinned memory, so it does not wait.
        inputs = torch.tensor(
            [newest, uniform],
            dtype=torch.float64,
            pin_memory=self.rules_device.type == "cuda",
        )  # (2, n)
        if self._draw is None:
            self._draw = compiled(_draw, self.seen)
        drawn = self._draw(
            self._score,
            self._rules_of(active),
            any(sample.log_probabilities for _, sample in active),
            max(sample.n_likeliest for _, sample in active),
            inputs.to(self.rules_device, non_blocking=True),
            self.device,
            None if self.seen is None else self.seen[self._span],
        )
        columns = drawn.t().tolist()  # (n, 2 or more)
        for row in range(self._span.start, self._span.stop):
            self.lengths[row] += 1

        return [self._take(row, sample, columns[row - first]) for row, sample in active]

    def end(self, number: int) -> None:
        """End a sample: free its row, or remove it from the queue."""
        for row, sample in enumerate(self.rows):
            if sample is not None and sample.number == number:
                self.rows[row] = None
                self._n_ended += 1
                self._released[row] = self._n_ended
                return
        self.waiting = deque(sample for sample in self.waiting if sample.number != number)

    def reset(self) -> None:
        """End all samples, and forget the keys and values of all rows. Call this method after draw failed."""
        self.waiting.clear()
        self.rows = [None] * len(self.rows)
        self.encoded = [[] for _ in self.rows]
        self.lengths = [0] * len(self.rows)
        self._span = slice(0, 0)

    def _take(self, row: int, sample: Sample, column: list[float]) -> Drawn:
        if not math.isfinite(column[1]):
            # The row must hold no NaN, because even a masked NaN would change the next sample of this row.
            for tensor in self.cache.tensors:
                tensor[row] = 0
            self.encoded[row] = []
            return Drawn(sample.number, NOT_FINITE, None, [])
        self.encoded[row].append(sample.ids[-1])
        token = int(column[0])
        sample.ids.append(token)

        rest = column[2:]
        log_probability = rest[0] if sample.log_probabilities else None
        n_pairs = sample.n_likeliest
        likeliest = []
        if n_pairs:
            # The pairs of all samples come last. A log-probability may come before the pairs.
            n_all = len(rest) // 2
            ids = rest[-2 * n_all : len(rest) - n_all][:n_pairs]
            values = rest[len(rest) - n_all :][:n_pairs]
            likeliest = [(int(i), value) for i, value in zip(ids, values, strict=True)]
        return Drawn(sample.number, token, log_probability, likeliest)

    def _rules_of(
        self, active: list[tuple[int, Sample]]
    ) -> tuple[tuple[Rules, Tensor | None], ...]:
        """Return the different rules, each with the rows of the span that use these rules. None stands for all rows."""
        rows: dict[Rules, list[int]] = {}
        for row, sample in active:
            rows.setdefault(sample.rules, []).append(row - self._span.start)
        if len(rows) == 1:
            return ((next(iter(rows)), None),)
        return tuple(
            (rules, torch.tensor(some, device=self.rules_device)) for rules, some in rows.items()
        )

    def _refill(self) -> list[tuple[int, Sample]]:
        """Give free rows to waiting samples. Encode the newest half of the tokens of each full row a second time."""
        capacity = self.cache.slots.capacity
        windows = {}  # ids to encode, by row
        for row, sample in enumerate(self.rows):
            if sample is not None and self.lengths[row] == capacity:
                n_kept = max(1, capacity // 2)
                windows[row] = sample.ids[-n_kept:]
                self.encoded[row] = []

        free = [row for row, sample in enumerate(self.rows) if sample is None]
        while free and self.waiting:
            sample = self.waiting.popleft()
            window = sample.ids[-capacity:]
            row = self._choose_row(free, window)
            free.remove(row)
            self.rows[row] = sample
            windows[row] = window
            if sample.rules.repetition_penalty != 1:
                assert self.seen is not None
                self.seen[row] = False
                self.seen[row, sample.ids] = True

        self._encode(windows)
        active = [(row, sample) for row, sample in enumerate(self.rows) if sample is not None]
        if active:
            self._set_span(active[0][0], active[-1][0] + 1, is_changed=bool(windows))
        return active

    def _choose_row(self, free: list[int], window: list[int]) -> int:
        """Return the free row whose cache shares the most ids with the start of the window.

        If no free row shares any ids, return the row that has been free for the longest time.
        Without reuse, return the first free row, and forget the ids that it holds.
        """
        if not self.reuse:
            self.encoded[free[0]] = []
            return free[0]

        n_same = {row: common_prefix_length(self.encoded[row], window[:-1]) for row in free}
        row = max(free, key=lambda row: (n_same[row], -self._released[row]))
        del self.encoded[row][n_same[row] :]
        return row

    def _encode(self, windows: dict[int, list[int]]) -> None:
        # The newest token of each window and the ids that the row already holds are left out.
        new = {row: window for row, window in windows.items() if not self.encoded[row]}
        if new:
            _encode(self.model, self.cache, new)
        for row, window in windows.items():
            known = window[:-1]
            n_kept = len(self.encoded[row])
            if 0 < n_kept < len(known):
                part = self.cache.rows(slice(row, row + 1))
                part.slots.set_lengths([n_kept])
                rest = torch.tensor([known[n_kept:]], device=self.device)  # (1, T)
                self.model.hidden(rest, part)
            self.encoded[row] = known
            self.lengths[row] = len(known)

    def _set_span(self, start: int, stop: int, *, is_changed: bool) -> None:
        # is_changed: whether the length of any of these rows changed
        if self.is_compiled:
            start, stop = 0, len(self.rows)

        # A free row between active rows is decoded, too. Therefore it can also reach the end of the cache.
        for row in range(start, stop):
            if self.rows[row] is None and self.lengths[row] == self.cache.slots.capacity:
                if len(self.encoded[row]) == self.lengths[row]:
                    self.encoded[row] = []
                self.lengths[row] = len(self.encoded[row])
                is_changed = True

        span = slice(start, stop)
        if span != self._span:
            self._span = span
            is_changed = True
            if not self.is_compiled:
                part = self.cache.rows(span)
                self._slots = part.slots
                self._score = DecodingStep(self.model, part)
        if is_changed:
            self._slots.set_lengths(self.lengths[span])

    def _score_by_forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens.unsqueeze(1), self.cache)[:, -1]


def _encode(model: GPT, cache: GPTCache, windows: dict[int, list[int]]) -> None:
    """Encode the windows in one pass, each without its newest token. Store keys and values in the rows of the cache."""
    known = [torch.tensor(window[:-1], dtype=torch.int64) for window in windows.values()]

    # Shorter rows are padded on the right. With causal attention, padding does not change earlier positions.
    tokens = pad_sequence(known, batch_first=True)  # (n, T)
    n_rows, n_tokens = tokens.shape
    encoded = model.new_cache(n_rows, n_tokens)
    if tokens.numel():
        model.hidden(tokens.to(cache.slots.device), encoded)
    cache.fill(list(windows), encoded, n_tokens)


def _draw(
    score: Callable[[Tensor], Tensor],
    groups: Sequence[tuple[Rules, Tensor | None]],
    log_probabilities: bool,
    n_likeliest: int,
    inputs: Tensor,
    device: torch.device,
    seen: Tensor | None,
) -> Tensor:
    """Compute the logits after the newest tokens, draw the next tokens, and mark them in seen.

    Args:
        score: function that returns the logits (B, V) after tokens, int64 (B,), on the device.
        groups: the different rules, each with its rows, int64 (n,). None stands for all rows.
        log_probabilities, n_likeliest, seen: see Decoder.add and choose.
        inputs: newest token and random number of each row, float64 (2, B), on the device of the rules.
        device: device of the model.

    Returns float64 (2 or more, B), a single tensor so that a single copy reads it. float64 represents every id
    exactly. The rows are:

    - the drawn tokens
    - the highest logits, which show whether the logits are finite
    - if log_probabilities: the log-probabilities of the drawn tokens, from the logits before any rule
    - n_likeliest rows: the most probable tokens, the most probable one first
    - n_likeliest rows: the log-probabilities of the most probable tokens
    """
    tokens = inputs[0].long().to(device)  # (B,)
    uniform = inputs[1]  # (B,)
    logits = score(tokens).to(inputs.device)  # (B, V)
    chosen = torch.zeros_like(tokens, device=inputs.device)  # (B,)
    for rules, rows in groups:
        penalised = seen if rules.repetition_penalty != 1 else None
        if rows is None:
            chosen = choose(logits, uniform, rules, penalised)  # (B,); V for a row of NaN
        else:
            of_rows = None if penalised is None else penalised[rows]  # (n, V)
            chosen[rows] = choose(logits[rows], uniform[rows], rules, of_rows)  # (n,)
    chosen = chosen.clamp(max=logits.size(-1) - 1)
    if seen is not None:
        seen.scatter_(1, chosen.unsqueeze(1), True)

    drawn = [chosen.double().unsqueeze(0), logits.amax(dim=-1).double().unsqueeze(0)]  # (1, B) each
    if log_probabilities or n_likeliest:
        all_tokens = logits.double().log_softmax(dim=-1)  # (B, V)
        if log_probabilities:
            drawn.append(all_tokens.gather(-1, chosen.unsqueeze(1)).t())  # (1, B)
        if n_likeliest:
            values, ids = all_tokens.topk(n_likeliest, dim=-1)  # (B, n_likeliest) each
            drawn += [ids.double().t(), values.t()]  # (n_likeliest, B) each
    return torch.cat(drawn)
