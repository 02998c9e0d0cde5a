"""A sample: the request for it, its ids, and its text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gptmini.generation.rules import Rules, uniforms
from gptmini.system.errors import UserError
from gptmini.tokenizer import REPLACEMENT, Tokenizer

# Maximum number of samples per prompt. All samples take memory from the start, so a wrong number could fill the memory.
MOST_SAMPLES = 1_000_000


@dataclass(frozen=True, eq=False, kw_only=True)
class Request:
    """A prompt, and the rules for its continuation. Raises UserError if a stop string is empty."""

    rules: Rules
    seed: int = 0
    prompt: Sequence[int] = ()  # a session requires at least one id
    series: int = 0  # see uniforms
    stop: Sequence[str] = ()  # the sample ends before the first of these strings
    ignore_end_of_text: bool = False
    n_likeliest: int | None = None  # None: no log-probabilities, not even those of the drawn tokens
    leading: str = ""  # this text, such as the space before an answer, is removed from the start

    def __post_init__(self) -> None:
        """Check the stop strings."""
        if "" in self.stop:
            raise UserError("a stop string must not be empty")

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
    token: int  # -1 if the logits were not finite
    log_probability: float | None  # None if the request did not ask for log-probabilities
    # When the sample ends: 'end_of_text', 'stop', 'length', or in Session.step 'not_finite'. Otherwise None.
    finish: str | None
    offset: int = 0  # number of characters in the sample before this token
    # Most probable tokens, each with its log-probability.
    likeliest: Sequence[tuple[int, float]] = ()


class Sample:
    """A request that is being answered. Its text never ends within a character or within a stop string."""

    def __init__(self, number: int, request: Request, tokenizer: Tokenizer) -> None:
        self.number = number  # counted from 0
        self.request = request
        self.tokenizer = tokenizer
        self.ids = list(request.prompt)  # prompt and drawn tokens
        self.uniforms = uniforms(request.seed, request.series)  # random numbers of this sample
        self.n_characters = 0  # in the drawn tokens, without an incomplete character at the end
        self._ends = () if request.ignore_end_of_text else tokenizer.ends
        self._leading = request.leading
        self._pending: list[int] = []  # newest ids; the last id may end within a character
        self._n_certain = 0  # number of certain characters in the text of the pending ids
        self._held = ""  # certain characters that may be the start of a stop string

    def add(self, token: int) -> tuple[str, str | None]:
        """Add a drawn token. Return the text that is certain now, and the reason if the text ends here, otherwise None.

        The reason is 'end_of_text', 'stop' or 'length'. Do not add a token after the end.
        """
        self.ids.append(token)
        finish = None
        if token in self._ends:
            finish = "end_of_text"
        else:
            self._pending.append(token)
            n_drawn = len(self.ids) - len(self.request.prompt)
            if n_drawn == self.request.rules.max_new_tokens:
                finish = "length"
        text = self._held + self._decoded(is_last=finish is not None)

        # If several stop strings occur, the stop string that is complete first ends the sample.
        starts = [(text.find(stop), stop) for stop in self.request.stop]
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
        longest = max((len(stop) for stop in self.request.stop), default=1) - 1
        for n_characters in range(min(longest, len(text)), 0, -1):
            ending = text[-n_characters:]
            if any(stop.startswith(ending) for stop in self.request.stop):
                return n_characters
        return 0
