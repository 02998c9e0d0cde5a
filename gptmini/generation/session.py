"""A session: samples that are decoded together. Text never ends within a character or within a stop string."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gptmini.generation.compiled import CompiledDecoder
from gptmini.generation.decoding import NOT_FINITE, Decoder
from gptmini.generation.rules import Rules
from gptmini.model import GPT
from gptmini.system.errors import UserError
from gptmini.tokenizer import REPLACEMENT, Tokenizer

# Maximum number of samples per call. All samples take memory from the start, so a wrong number could fill the memory.
MOST_SAMPLES = 1_000_000
DIVERGED = "logits must be finite, got NaN or infinity; the training has diverged or the checkpoint is damaged"


@dataclass(frozen=True, eq=False, kw_only=True)
class Request:
    """A prompt, and the rules for its continuation."""

    rules: Rules
    seed: int
    prompt: Sequence[int] = ()  # a session requires at least one id
    series: int = 0  # see gptmini.generation.uniforms
    stop: Sequence[str] = ()  # the sample ends before the first of these strings
    ignore_end_of_text: bool = False
    n_likeliest: int | None = None  # None: no log-probabilities, not even those of the drawn tokens
    leading: str = ""  # this text, such as the space before an answer, is removed from the start

    def for_prompts(
        self, prompts: Sequence[Sequence[int]], num_samples: int
    ) -> Iterator["Request"]:
        """Yield num_samples requests for each prompt. They differ in their random numbers."""
        for i, prompt in enumerate(prompts):
            for number in range(num_samples):
                # Independent of num_samples, so that more samples do not change the samples of later prompts.
                yield replace(self, prompt=prompt, series=i * MOST_SAMPLES + number)


class TextPiece(NamedTuple):
    """The text that one token adds to a sample. Log-probabilities are in nats, from the logits before any rule."""

    sample: int  # number of the sample, counted from 0; the samples of the first prompt come first
    text: str  # text that is certain after this token; empty within a character, for example
    token: int
    log_probability: float | None  # None if the request did not ask for log-probabilities
    # When the sample ends: 'end_of_text', 'stop', 'length', or in Session.step 'not_finite'. Otherwise None.
    finish: str | None
    offset: int = 0  # number of characters in the sample before this token
    likeliest: Sequence[tuple[int, float]] = ()  # most probable tokens and their log-probabilities


class Session:
    """Samples of one model that are decoded together. Samples may be added at any time."""

    def __init__(
        self,
        model: GPT,
        tokenizer: Tokenizer,
        *,
        batch_size: int = 1,
        capacity: int | None = None,
        reuse: bool = False,
        compile: bool = False,
    ) -> None:
        """Allocate the cache. compile chooses between Decoder and CompiledDecoder; for other arguments, see Decoder."""
        decoder = CompiledDecoder if compile else Decoder
        self._decoder = decoder(model, batch_size=batch_size, capacity=capacity, reuse=reuse)
        self._texts: dict[int, SampleText] = {}  # by the number of the sample
        self.tokenizer = tokenizer
        self.capacity = self._decoder.capacity  # maximum number of tokens that the model sees

    def add(self, request: Request) -> int:
        """Add a sample, and return its number. Raises UserError if a stop string is empty."""
        text = SampleText(self.tokenizer, request)
        number = self._decoder.add(
            request.prompt,
            request.rules,
            seed=request.seed,
            series=request.series,
            n_likeliest=request.n_likeliest,
        )
        self._texts[number] = text
        return number

    def step(self) -> list[TextPiece]:
        """Draw a token for each sample in the batch. Return an empty list if all samples have ended.

        If the logits of a sample are not finite, the sample ends with finish 'not_finite'.
        """
        pieces = []
        for sample, token, log_probability, likeliest in self._decoder.draw():
            text = self._texts[sample]
            offset = text.n_characters
            added, finish = ("", "not_finite") if token == NOT_FINITE else text.add(token)
            if finish is not None:
                self.end(sample)
            pieces.append(
                TextPiece(sample, added, token, log_probability, finish, offset, likeliest)
            )
        return pieces

    def pieces(self) -> Generator[TextPiece, None, None]:
        """Yield the pieces of all samples until they have ended. Raises UserError if logits are not finite."""
        while pieces := self.step():
            for piece in pieces:
                if piece.finish == "not_finite":
                    raise UserError(DIVERGED)
                yield piece

    def end(self, number: int) -> None:
        """End a sample early. Do nothing if it has ended."""
        if self._texts.pop(number, None) is not None:
            self._decoder.end(number)

    def reset(self) -> None:
        """End all samples. Call this method after step failed, because the cache may be incomplete."""
        self._texts.clear()
        self._decoder.reset()


class SampleText:
    """The text of one sample. It decodes ids one at a time."""

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        """Start an empty text. Raises UserError if a stop string is empty."""
        if not all(request.stop):
            raise UserError("a stop string must not be empty")
        self.tokenizer = tokenizer
        self.stop = request.stop
        self.max_tokens = request.rules.max_new_tokens
        self.ends = {tokenizer.end_of_text, *tokenizer.more_ends}
        if request.ignore_end_of_text:
            self.ends = set()
        self.n_tokens = 0  # number of tokens that were passed to add
        # number of characters of these tokens, without an incomplete character at the end
        self.n_characters = 0
        self.stopped = False  # whether a stop string has occurred; afterwards, do not call push
        self._leading = request.leading
        self._pending: list[int] = []  # newest ids; the last id may end within a character
        self._n_certain = 0  # number of certain characters in the text of the pending ids
        self._held = ""  # certain characters that may be the start of a stop string

    def add(self, token: int) -> tuple[str, str | None]:
        """Add a drawn token. Return the text that is certain now, and the reason if the text ends here, otherwise None.

        The reason is 'end_of_text', 'stop' or 'length'.
        """
        self.n_tokens += 1
        if token in self.ends:
            text = self.finish()
            reason = "end_of_text"
        else:
            text = self.push(token)
            reason = None
            if self.n_tokens == self.max_tokens and not self.stopped:
                text += self.finish()
                reason = "length"

        if text and self._leading:
            text = text.removeprefix(self._leading)
            self._leading = ""
        # The text that finish returns may complete a stop string.
        return text, "stop" if self.stopped else reason

    def push(self, token: int) -> str:
        """Add a token that does not end the text. Return the text that is certain now."""
        self._pending.append(token)
        text = self.tokenizer.decode(self._pending)

        # An incomplete character at the end decodes to one replacement character.
        certain = text.removesuffix(REPLACEMENT)
        added = certain[self._n_certain :]
        self.n_characters += len(added)
        if certain == text:
            self._pending = []
            self._n_certain = 0
        else:
            self._n_certain = len(certain)
        return self._before_stop(added)

    def finish(self) -> str:
        """Return the rest of the text, even if a character is incomplete."""
        rest = self.tokenizer.decode(self._pending)[self._n_certain :]
        self.n_characters += len(rest)
        text = self._before_stop(rest)
        if not self.stopped:
            text += self._held

        self._pending = []
        self._n_certain = 0
        self._held = ""
        return text

    def _before_stop(self, added: str) -> str:
        """Return the text that is held back plus the added text, up to a stop string or its possible start."""
        text = self._held + added

        # If several stop strings occur, the stop string that is complete first ends the sample.
        ends_and_starts = []
        for stop in self.stop:
            start = text.find(stop)
            if start >= 0:
                ends_and_starts.append((start + len(stop), start))
        if ends_and_starts:
            self.stopped = True
            self._held = ""
            _, start = min(ends_and_starts)
            return text[:start]

        n_shown = len(text) - self._longest_stop_start(text)
        self._held = text[n_shown:]
        return text[:n_shown]

    def _longest_stop_start(self, text: str) -> int:
        """Return the length of the longest suffix of the text that is a prefix of a stop string."""
        longest = max((len(stop) for stop in self.stop), default=1) - 1
        for n_characters in range(min(longest, len(text)), 0, -1):
            ending = text[-n_characters:]
            if any(stop.startswith(ending) for stop in self.stop):
                return n_characters
        return 0
