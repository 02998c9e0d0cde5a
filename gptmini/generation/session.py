"""A session decodes many samples of a model in one batch. The samples are independent of each other."""

import math
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pad_sequence

from gptmini.generation.rules import RuleGroups, Rules, draw
from gptmini.generation.sample import Request, Sample, TextPiece
from gptmini.model import GPT, GPTCache
from gptmini.system.errors import UserError
from gptmini.tokenizer import Tokenizer, common_prefix_length

# The kernels of attention on a GPU: all except cuDNN's, which builds a plan for each length. On an H200, the first 512
# tokens of GPT-2 in bf16 took 27 s with cuDNN, and 2 s without.
ATTENTION = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
DIVERGED = "logits must be finite, got NaN or infinity; the model diverged or the file is damaged"


@dataclass(eq=False)
class Row:
    """A row of the batch and of the cache."""

    index: int
    sample: Sample | None = None  # None: the row is free
    ids: list[int] = field(default_factory=list)  # the ids whose keys and values the row holds
    length: int = 0  # positions in the cache; the last positions of a free row may not be valid
    n_ended: int = 0  # number of samples that had ended when the row became free


class Session:
    """Generates many samples, batch_size samples at a time. When a sample ends, the next sample takes its row.

    Samples may be added at any time. A sample may exceed the context: when its row of the cache is full, the newest
    half of its tokens is encoded a second time in one pass. A sample depends on its prompt, its rules, its seed and its
    series, but not on other samples.
    """

    def __init__(
        self,
        model: GPT,
        tokenizer: Tokenizer,
        *,
        batch_size: int = 1,
        capacity: int | None = None,
        reuse: bool = False,
    ) -> None:
        """Allocate the cache.

        Args:
            model: a GPT in eval mode.
            tokenizer: the tokenizer of the model.
            batch_size: maximum number of samples at a time, at least 1.
            capacity: tokens per row of the cache, at most the context. None: the context. The model never sees more
                tokens of a sample at a time.
            reuse: whether a row keeps the keys and values of a sample that ended. A later sample that starts with the
                same ids, such as the next turn of a chat, then encodes only the rest of its prompt.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.reuse = reuse
        self.waiting: deque[Sample] = deque()
        self.rows = [Row(index) for index in range(batch_size)]
        self._n_added = 0
        self._n_ended = 0

        longest = model.config.longest_input
        self.capacity = longest if capacity is None else min(capacity, longest)
        self.cache = self._new_cache(batch_size, self.capacity)
        self._span = slice(0, 0)  # the rows that a step advances
        self._part = self.cache  # the cache of these rows

        # Rules compute in float64. Apple's GPUs do not support float64.
        self.device = model.embedding.weight.device
        self.rules_device = self.device
        if self.device.type == "mps":
            self.rules_device = torch.device("cpu")

        # Ids that occur in the prompt or the sample, bool (B, V); only the repetition penalty needs these ids.
        self.seen: Tensor | None = None

    def add(self, request: Request) -> int:
        """Add a sample. The sample starts as soon as a row is free. Return the number of the sample, counted from 0."""
        if request.rules.repetition_penalty != 1 and self.seen is None:
            shape = (len(self.rows), self.model.config.vocab_size)
            self.seen = torch.zeros(shape, dtype=torch.bool, device=self.rules_device)

        number = self._n_added
        self._n_added += 1
        self.waiting.append(Sample(number, request, self.tokenizer))
        return number

    @torch.inference_mode()
    def step(self) -> list[TextPiece]:
        """Draw the next token of every sample in the batch. Return an empty list if all samples have ended.

        If the logits of a sample are not finite, the sample ends with finish 'not_finite'.
        """
        with sdpa_kernel(ATTENTION) if self.device.type == "cuda" else nullcontext():
            return self._step()

    def _step(self) -> list[TextPiece]:
        self._refill()
        active = [row for row in self.rows if row.sample is not None]
        if not active:
            return []

        rows = self.rows[self._span]
        samples = [row.sample for row in rows]
        # Each step needs a copy to the GPU and a copy back. The first copy uses pinned memory, so it does not wait.
        inputs = torch.tensor(
            [
                [sample.ids[-1] if sample else 0 for sample in samples],
                [next(sample.uniforms) if sample else 0.0 for sample in samples],
            ],
            dtype=torch.float64,
            pin_memory=self.rules_device.type == "cuda",
        )  # (2, n)
        counts = [sample.request.n_likeliest for sample in samples if sample]
        drawn = self._draw(
            inputs.to(self.rules_device, non_blocking=True),
            self._groups_of(samples),
            max((n for n in counts if n is not None), default=None),
            self.seen,
        )
        values = drawn.tolist()  # n rows of 2 or more numbers
        for row in rows:
            row.length += 1
        return [self._take(row, values[row.index - self._span.start]) for row in active]

    def pieces(self) -> Generator[TextPiece, None, None]:
        """Yield the pieces of all samples until they have ended. Raises UserError if logits are not finite."""
        while pieces := self.step():
            for piece in pieces:
                if piece.finish == "not_finite":
                    raise UserError(DIVERGED)
                yield piece

    def end(self, number: int) -> None:
        """End a sample: free its row, or remove it from the queue. Do nothing if it has ended."""
        for row in self.rows:
            if row.sample is not None and row.sample.number == number:
                self._n_ended += 1
                row.sample = None
                row.n_ended = self._n_ended
                return
        self.waiting = deque(sample for sample in self.waiting if sample.number != number)

    def reset(self) -> None:
        """End all samples, and forget the keys and values of all rows. Call this method after step failed."""
        self.waiting.clear()
        self.rows = [Row(row.index) for row in self.rows]
        self._span = slice(0, 0)

    def _take(self, row: Row, values: list[float]) -> TextPiece:
        """Give a row its drawn token. values is a row of the result of draw."""
        sample = row.sample
        assert sample is not None
        offset = sample.n_characters
        token, highest, *rest = values
        if not math.isfinite(highest):
            # The row must hold no NaN, because even a masked NaN would change the next sample of this row.
            for tensor in self.cache.tensors:
                tensor[row.index] = 0
            row.ids = []
            self.end(sample.number)
            return TextPiece(sample.number, "", -1, None, "not_finite", offset)

        row.ids.append(sample.ids[-1])
        text, finish = sample.add(int(token))
        if finish is not None:
            self.end(sample.number)
        piece = TextPiece(sample.number, text, int(token), None, finish, offset)
        n_likeliest = sample.request.n_likeliest
        if n_likeliest is None:
            return piece

        log_probability, *pairs = rest
        n_all = len(pairs) // 2  # other samples may want more pairs
        ids = map(int, pairs[: min(n_likeliest, n_all)])
        likeliest = list(zip(ids, pairs[n_all:], strict=False))
        return piece._replace(log_probability=log_probability, likeliest=likeliest)

    def _groups_of(self, samples: list[Sample | None]) -> RuleGroups:
        places: dict[Rules, list[int]] = {}
        for place, sample in enumerate(samples):
            if sample is not None:
                places.setdefault(sample.request.rules, []).append(place)
        if len(places) == 1:
            return [(rules, None) for rules in places]
        return [
            (rules, torch.tensor(some, device=self.rules_device)) for rules, some in places.items()
        ]

    # Rows

    def _refill(self) -> None:
        """Give free rows to waiting samples. Encode the newest half of the tokens of each full row a second time."""
        windows: dict[Row, list[int]] = {}  # ids to encode
        for row in self.rows:
            if row.sample is not None and row.length == self.capacity:
                windows[row] = row.sample.ids[-max(1, self.capacity // 2) :]
                row.ids = []

        free = [row for row in self.rows if row.sample is None]
        while free and self.waiting:
            sample = self.waiting.popleft()
            window = sample.ids[-self.capacity :]
            row = self._choose_row(free, window)
            free.remove(row)
            row.sample = sample
            windows[row] = window
            if sample.request.rules.repetition_penalty != 1:
                assert self.seen is not None
                self.seen[row.index] = False
                self.seen[row.index, sample.ids] = True

        self._encode(windows)
        active = [row.index for row in self.rows if row.sample is not None]
        if not active:
            return

        # A free row between active rows is decoded, too. Therefore it can also reach the end of the cache.
        span = self._span_of(active[0], active[-1])
        full = [row for row in self.rows[span] if row.length == self.capacity]
        for row in full:
            if len(row.ids) == row.length:
                row.ids = []
            row.length = len(row.ids)
        if windows or full or span != self._span:
            self._start(span, [row.length for row in self.rows[span]])
            self._span = span

    def _choose_row(self, free: list[Row], window: list[int]) -> Row:
        """Return the free row whose cache shares the most ids with the start of the window.

        If no free row shares any ids, return the row that has been free for the longest time.
        Without reuse, return the first free row, and forget the ids that it holds.
        """
        if not self.reuse:
            free[0].ids = []
            return free[0]

        n_same = {row: common_prefix_length(row.ids, window[:-1]) for row in free}
        row = max(free, key=lambda row: (n_same[row], -row.n_ended))
        del row.ids[n_same[row] :]
        return row

    def _encode(self, windows: dict[Row, list[int]]) -> None:
        """Encode all ids of the windows except the newest ids, which a step adds, and the ids that the rows hold."""
        new = {row.index: window[:-1] for row, window in windows.items() if not row.ids}
        if new:
            # Shorter rows are padded on the right. With causal attention, padding does not change earlier positions.
            rows = [torch.tensor(ids, dtype=torch.int64) for ids in new.values()]
            tokens = pad_sequence(rows, batch_first=True)  # (n, T)
            encoded = self.model.new_cache(*tokens.shape)
            if tokens.numel():
                self.model.hidden(tokens.to(self.device), encoded)
            self.cache.fill(list(new), encoded, tokens.size(1))

        for row, window in windows.items():
            ids = window[:-1]
            n_held = len(row.ids)
            if 0 < n_held < len(ids):
                part = self.cache.rows(slice(row.index, row.index + 1))
                part.slots.set_lengths([n_held])
                rest = torch.tensor([ids[n_held:]], device=self.device)  # (1, T)
                self.model.hidden(rest, part)
            # Only now, because Ctrl-C can interrupt the lines above.
            row.ids = ids
            row.length = len(ids)

    # The eager path. CompiledSession replaces these methods.

    def _new_cache(self, batch_size: int, capacity: int) -> GPTCache:
        return self.model.new_cache(batch_size, capacity)

    def _span_of(self, first: int, last: int) -> slice:
        """Return the rows that a step advances, given the first and the last active row."""
        return slice(first, last + 1)

    def _start(self, span: slice, lengths: Sequence[int]) -> None:
        """Prepare steps of the rows in the span, which have these lengths."""
        if span != self._span:
            self._part = self.cache.rows(span)
        self._part.slots.set_lengths(lengths)

    def _draw(
        self, inputs: Tensor, groups: RuleGroups, n_likeliest: int | None, seen: Tensor | None
    ) -> Tensor:
        """Add the newest token to each row of the span, and draw the next tokens. Return the result of draw.

        inputs contains the newest token and the random number of each row, float64 (2, n), on the device of the rules.
        """
        tokens = inputs[0].long().to(self.device)  # (n,)
        logits = self.model(tokens.unsqueeze(1), self._part)[:, -1].to(inputs.device)  # (n, V)
        of_span = None if seen is None else seen[self._span]  # (n, V)
        return draw(logits, inputs[1], groups, n_likeliest, of_span)
