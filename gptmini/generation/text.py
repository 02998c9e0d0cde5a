"""Stream text that continues prompts. A piece never ends within a character or within a stop string."""

import inspect
import operator
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from pydantic import ValidationError

from gptmini.generation.decoding import NOT_FINITE, Decoder
from gptmini.generation.rules import Rules
from gptmini.model import GPT
from gptmini.model.gpt import in_eval_mode
from gptmini.model.packed import is_packed
from gptmini.settings import (
    SAMPLE_BATCH_SIZE,
    SAMPLE_SEED,
    SAMPLE_TEMPERATURE,
    SAMPLE_TOKENS,
    first_error,
)
from gptmini.system.errors import UserError, did_you_mean
from gptmini.tokenizer import REPLACEMENT, Tokenizer

# Maximum number of samples per call. All samples take memory from the start, so a wrong number could fill the memory.
MOST_SAMPLES = 1_000_000


class TextPiece(NamedTuple):
    """The text that one token adds to a sample."""

    sample: int  # number of the sample, counted from 0; the samples of the first prompt come first
    text: str  # text that is certain after this token; empty within a character, for example
    token: int
    # In nats, from the model's logits before any rule. None if log_probabilities is false.
    log_probability: float | None
    finish: str | None  # 'end_of_text', 'stop' or 'length' when the sample ends; otherwise None


def generate_stream(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: str | Sequence[str | Sequence[int]],
    *,
    num_samples: int = 1,
    batch_size: int = 1,
    seed: int = SAMPLE_SEED,
    max_new_tokens: int | None = SAMPLE_TOKENS,
    temperature: float = SAMPLE_TEMPERATURE,
    stop: str | Sequence[str] | None = None,
    ignore_end_of_text: bool = False,
    log_probabilities: bool = False,
    compile: bool = False,
    **rules: Any,
) -> Generator[TextPiece, None, None]:
    """Continue prompts and yield pieces of text. Up to batch_size samples take turns.

    Args:
        model, tokenizer: from load. The model is in eval mode until the stream ends or is closed.
        prompts: one prompt or several, as text or as ids. An empty text starts a new document.
        num_samples: number of samples per prompt, at least 1.
        batch_size: maximum number of samples at a time, at least 1. With 1, one sample is generated after the other.
        seed: random seed. A sample depends on the seed, on its prompt and the prompt's position, and on its index among
            the samples of its prompt. Other samples in the batch change it only through rounding errors.
        max_new_tokens: maximum number of tokens per sample. None: no limit.
        temperature: 0 always chooses the most probable token.
        stop: one or more strings. A sample ends before the first stop string in the generated text.
        ignore_end_of_text: True to continue when the model draws the end of a document; False to end the sample.
        log_probabilities: whether to return the log-probability of each token.
        compile: whether to compile the decoding step. This takes about a minute and pays off on a GPU.
        rules: other fields of Rules: top_k, top_p, min_p and repetition_penalty.

    Raises UserError at the first piece if an option is unknown, a value has a wrong type or range, or a prompt has
    characters that the tokenizer cannot encode. Raises UserError at any piece if the logits are not finite.
    """
    num_samples = checked_integer("num_samples", num_samples, least=1)
    batch_size = checked_integer("batch_size", batch_size, least=1)
    seed = checked_integer("seed", seed)
    all_rules = checked_rules(
        generate_stream, max_new_tokens=max_new_tokens, temperature=temperature, **rules
    )
    if compile and is_packed(model):
        raise UserError(
            "a packed model cannot be compiled; remove compile=True or the call of pack()"
        )
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    if len(texts) * num_samples > MOST_SAMPLES:
        raise UserError(
            f"num_samples times the number of prompts must be at most {MOST_SAMPLES:,}, "
            f"got {num_samples} and {len(texts)}; for more samples, call again with a different seed"
        )
    stops = as_list(stop or ())

    ids = _encode_prompts(tokenizer, texts)
    n_samples = len(ids) * num_samples
    capacity = None  # the context; less than the context if every sample is shorter
    if all_rules.max_new_tokens is not None:
        capacity = max(map(len, ids), default=0) + all_rules.max_new_tokens

    with in_eval_mode(model):
        decoder = Decoder(
            model,
            batch_size=min(batch_size, n_samples),
            capacity=capacity,
            compile=compile,
        )
        streams = {}
        for i, prompt in enumerate(ids):
            for number in range(num_samples):
                # Each prompt has MOST_SAMPLES random streams. So a sample's stream does not depend on num_samples.
                sample = decoder.add(
                    prompt,
                    all_rules,
                    seed=seed,
                    stream=i * MOST_SAMPLES + number,
                    log_probabilities=log_probabilities,
                )
                streams[sample] = TextStream(
                    tokenizer,
                    stops,
                    max_tokens=all_rules.max_new_tokens,
                    ignore_end_of_text=ignore_end_of_text,
                )

        while drawn := decoder.draw():
            for sample, token, log_probability, _ in drawn:
                text, finish = streams[sample].add(token)
                if finish is not None:
                    decoder.end(sample)
                    del streams[sample]
                yield TextPiece(
                    sample=sample,
                    text=text,
                    token=token,
                    log_probability=log_probability,
                    finish=finish,
                )


def generate(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: str | Sequence[str],
    *,
    num_samples: int = 1,
    batch_size: int = SAMPLE_BATCH_SIZE,
    **options: Any,
) -> list[str]:
    """Return the texts that continue prompts, without the prompts. The samples of the first prompt come first.

    The arguments and the errors are those of generate_stream. Up to batch_size samples are drawn at a time.
    """
    texts: dict[int, str] = defaultdict(str)  # by the number of the sample
    for piece in generate_stream(
        model,
        tokenizer,
        prompts,
        num_samples=num_samples,
        batch_size=batch_size,
        **options,
    ):
        texts[piece.sample] += piece.text
    return [texts[sample] for sample in sorted(texts)]


def in_order(pieces: Iterable[TextPiece]) -> Iterator[TextPiece]:
    """Reorder a stream in which samples take turns. Yield all pieces of sample 0, then of sample 1, and so on.

    Pieces of the first unfinished sample are yielded immediately. Pieces of later samples wait.
    """
    current = 0  # number of the first unfinished sample
    held: dict[int, list[TextPiece]] = {}  # waiting pieces, by the number of the sample
    for piece in pieces:
        held.setdefault(piece.sample, []).append(piece)
        while current in held:
            ready = held.pop(current)
            yield from ready
            if ready[-1].finish is None:
                break
            current += 1

    # If the stream was interrupted, unfinished samples are left. Yield the waiting pieces.
    for sample in sorted(held):
        yield from held[sample]


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the ids of a prompt.

    An empty prompt starts a document. The result is then the end-of-text token, or 0 if this token is missing.
    """
    return [*tokenizer.prefix_ids, *tokenizer.encode(prompt)] or [tokenizer.end_of_text or 0]


class TextStream:
    """Decodes ids one at a time into text that never ends within a character or a stop string."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        *,
        max_tokens: int | None = None,
        ignore_end_of_text: bool = False,
        leading: str = "",
    ) -> None:
        """Start an empty text. Raise UserError if a stop string is empty.

        The method add uses max_tokens, stop and ignore_end_of_text to decide when the text ends; see generate_stream.
        The string `leading`, for example the space before an answer, is removed from the start of the text.
        """
        if not all(stop):
            raise UserError("a stop string must not be empty")
        self.tokenizer = tokenizer
        self.stop = stop
        self.max_tokens = max_tokens
        self.ends = set() if ignore_end_of_text else {tokenizer.end_of_text, *tokenizer.more_ends}
        self.n_tokens = 0  # number of tokens that were passed to add
        # number of characters of these tokens, without an incomplete character at the end
        self.n_characters = 0
        self._leading = leading
        self.stopped = False  # whether a stop string has occurred; afterwards, do not call push
        self._pending: list[int] = []  # newest ids; the last id may end within a character
        self._n_certain = 0  # number of certain characters in the text of the pending ids
        self._held = ""  # certain characters that may be the start of a stop string

    def add(self, token: int) -> tuple[str, str | None]:
        """Add a drawn token. Return the text that is certain now, and the reason if the text ends here, otherwise None.

        The reason is 'end_of_text', 'stop' or 'length'. Raises UserError if the token is NOT_FINITE.
        """
        if token == NOT_FINITE:
            raise UserError(
                "logits must be finite, got NaN or infinity; "
                "the training has diverged or the checkpoint is damaged"
            )
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
        piece = certain[self._n_certain :]
        self.n_characters += len(piece)
        if certain == text:
            self._pending = []
            self._n_certain = 0
        else:
            self._n_certain = len(certain)
        return self._before_stop(piece)

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

    def _before_stop(self, piece: str) -> str:
        """Return the held text plus a piece. Stop at a stop string or at the possible start of a stop string."""
        text = self._held + piece

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


def as_list(strings: str | Iterable[str]) -> list[str]:
    """Return one or several strings as a list."""
    return [strings] if isinstance(strings, str) else list(strings)


def checked_integer(name: str, value: Any, *, least: int | None = None) -> int:
    """Return an integer of Python or NumPy as an int. Raise UserError for other types and for integers below least."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UserError(f"{name} must be an integer, got {value!r}") from None
    if least is not None and number < least:
        raise UserError(f"{name} must be at least {least}, got {number}")
    return number


def checked_rules(function: Callable[..., Any], /, **rules: Any) -> Rules:
    """Return the Rules. Raise UserError if a name is unknown or a value is invalid.

    If a name is unknown, the error suggests a similar option of the function that the user called.
    """
    own = [field.name for field in fields(Rules)]
    for name in rules:
        if name not in own:
            known = [*inspect.signature(function).parameters, *own]
            fix = did_you_mean(name, known, otherwise=f"choose from {', '.join(known)}")
            raise UserError(f"unknown option {name}; {fix}")
    try:
        return Rules(**rules)
    except ValidationError as error:
        raise UserError(first_error(error)) from None


def _encode_prompts(
    tokenizer: Tokenizer, texts: Sequence[str | Sequence[int]]
) -> list[Sequence[int]]:
    encoded: list[Sequence[int]] = []
    for number, text in enumerate(texts, start=1):
        try:
            encoded.append(prompt_ids(tokenizer, text) if isinstance(text, str) else text)
        except UserError as error:
            if len(texts) == 1:
                raise
            raise UserError(f"prompt {number}: {error}") from None
    return encoded
