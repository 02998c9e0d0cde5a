"""A session: samples that are decoded together. Text never ends within a character or within a stop string."""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from gptmini.generation.compiled import CompiledDecoder
from gptmini.generation.decoding import NOT_FINITE, Decoder, Request
from gptmini.model import GPT
from gptmini.system.errors import UserError
from gptmini.tokenizer import REPLACEMENT, Tokenizer

DIVERGED = "logits must be finite, got NaN or infinity; the model diverged or the file is damaged"


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
        self, model: GPT, tokenizer: Tokenizer, *, compile: bool = False, **options: Any
    ) -> None:
        """Allocate the cache. compile: whether CompiledDecoder draws the tokens. options: those of Decoder."""
        self._decoder = (CompiledDecoder if compile else Decoder)(model, **options)
        self._texts: dict[int, SampleText] = {}  # by the number of the sample
        self.tokenizer = tokenizer
        self.capacity = self._decoder.capacity  # maximum number of tokens that the model sees

    def add(self, request: Request) -> int:
        """Add a sample, and return its number. Raises UserError if a stop string is empty."""
        text = SampleText(self.tokenizer, request)
        number = self._decoder.add(request)
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
        self.n_characters = 0  # in these tokens, without an incomplete character at the end
        self._leading = request.leading
        self._pending: list[int] = []  # newest ids; the last id may end within a character
        self._n_certain = 0  # number of certain characters in the text of the pending ids
        self._held = ""  # certain characters that may be the start of a stop string

    def add(self, token: int) -> tuple[str, str | None]:
        """Add a drawn token. Return the text that is certain now, and the reason if the text ends here, otherwise None.

        The reason is 'end_of_text', 'stop' or 'length'. Do not add a token after the end.
        """
        self.n_tokens += 1
        finish = None
        if token in self.ends:
            finish = "end_of_text"
        else:
            self._pending.append(token)
            if self.n_tokens == self.max_tokens:
                finish = "length"
        text = self._held + self._decoded(is_last=finish is not None)

        # If several stop strings occur, the stop string that is complete first ends the sample.
        starts = [(text.find(stop), stop) for stop in self.stop]
        ends_and_starts = [(start + len(stop), start) for start, stop in starts if start >= 0]
        if ends_and_starts:
            finish = "stop"
            _, start = min(ends_and_starts)
            text = text[:start]
        elif finish is None:
            n_certain = len(text) - self._longest_stop_start(text)
            self._held = text[n_certain:]
            text = text[:n_certain]

        if text and self._leading:
            text = text.removeprefix(self._leading)
            self._leading = ""
        return text, finish

    def _decoded(self, *, is_last: bool) -> str:
        """Return the text that the newest token makes certain. The last text may end within a character."""
        text = self.tokenizer.decode(self._pending)

        # An incomplete character at the end decodes to one replacement character.
        certain = text if is_last else text.removesuffix(REPLACEMENT)
        added = certain[self._n_certain :]
        self.n_characters += len(added)
        self._n_certain = len(certain)
        if certain == text:
            self._pending = []
            self._n_certain = 0
        return added

    def _longest_stop_start(self, text: str) -> int:
        """Return the length of the longest suffix of the text that is a prefix of a stop string."""
        longest = max((len(stop) for stop in self.stop), default=1) - 1
        for n_characters in range(min(longest, len(text)), 0, -1):
            ending = text[-n_characters:]
            if any(stop.startswith(ending) for stop in self.stop):
                return n_characters
        return 0
