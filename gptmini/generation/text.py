"""From prompts to text that streams: whole characters, and nothing that a stop string would take back."""

import difflib
import inspect
import operator
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from pydantic import ValidationError

from gptmini.generation.decoding import Decoder
from gptmini.generation.rules import Rules
from gptmini.model import GPT
from gptmini.model.packed import is_packed
from gptmini.settings import (
    SAMPLE_BATCH_SIZE,
    SAMPLE_SEED,
    SAMPLE_TEMPERATURE,
    SAMPLE_TOKENS,
    first_mistake,
)
from gptmini.tokenizer import REPLACEMENT, Tokenizer
from gptmini.user_error import UserError

# Most samples of one call. Each has an entry in memory from the start, so that a slip of the hand could fill it.
MOST_SAMPLES = 1_000_000


class TextPiece(NamedTuple):
    """What one more token adds to a sample."""

    sample: int  # number of the sample: those of the first prompt, then those of the second
    text: str  # text that has become certain with this token; often empty, as within a character
    token: int
    # In nats, under the model alone, before any rule; None unless asked for.
    log_probability: float | None
    finish: str | None  # with the last piece: end_of_text, stop or length


def generate_stream(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: str | Sequence[str],
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
    """Continue prompts; the pieces of up to batch_size samples come in turns.

    Args:
        model, tokenizer: as load gives them; the model is in eval mode until the stream ends or is closed.
        prompts: one text or several; an empty text starts a document.
        num_samples: samples of each prompt, at least 1.
        batch_size: most samples at a time, at least 1. With 1, the pieces of one sample follow those of another.
        seed: fixes a sample, together with its prompt, the prompt's place among the prompts, and the sample's number
            among those of its prompt. Other samples in the batch change it only where rounding decides.
        max_new_tokens: length of a sample; None for no limit.
        temperature: 0 takes the most probable token.
        stop: texts that end a sample where one first stands complete in what was generated; they are not part of it.
        ignore_end_of_text: whether to go on when the end of a document is drawn, instead of ending the sample there.
        log_probabilities: whether each piece has the log-probability of its token.
        compile: whether the step of one token is compiled, which takes about a minute and pays on a GPU.
        rules: further fields of Rules: top_k, top_p, min_p and repetition_penalty.

    Raises UserError when a piece is asked for: an unknown option, a value of the wrong type or out of range, an unknown
    character, logits not finite.
    """
    num_samples = _whole_number("num_samples", num_samples, least=1)
    batch_size = _whole_number("batch_size", batch_size, least=1)
    seed = _whole_number("seed", seed)
    checked = _checked(max_new_tokens=max_new_tokens, temperature=temperature, **rules)
    if compile and is_packed(model):
        raise UserError(
            "a packed model cannot be compiled; leave out compile=True, or pack() before generating"
        )
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    if len(texts) * num_samples > MOST_SAMPLES:
        raise UserError(
            f"num_samples times the number of prompts must be at most {MOST_SAMPLES:,}, "
            f"got {num_samples} and {len(texts)}; use several seeds for more"
        )
    stops = [stop] if isinstance(stop, str) else list(stop or ())

    # One entry for each sample: the ids of its prompt, and its random stream. The streams of a prompt begin far enough
    # apart that num_samples does not change which stream a sample has.
    ids = []
    random_streams = []
    for i, prompt in enumerate(_encode_prompts(tokenizer, texts)):
        for number in range(num_samples):
            ids.append(prompt)
            random_streams.append(i * MOST_SAMPLES + number)

    decoder = Decoder(
        model,
        ids,
        checked,
        streams=random_streams,
        seed=seed,
        batch_size=batch_size,
        log_probabilities=log_probabilities,
        compile=compile,
    )
    streams = {sample: TextStream(tokenizer, stops) for sample in range(len(ids))}
    n_drawn = [0] * len(ids)
    ends = set() if ignore_end_of_text else {tokenizer.end_of_text, *tokenizer.more_ends}

    was_training = model.training
    model.eval()
    try:
        while drawn := decoder.draw():
            for sample, token, log_probability in drawn:
                n_drawn[sample] += 1
                text, finish = _next_text(
                    streams[sample],
                    token,
                    ends_document=token in ends,
                    is_last=n_drawn[sample] == checked.max_new_tokens,
                )
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
    finally:
        model.train(was_training)


def generate(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: str | Sequence[str],
    *,
    num_samples: int = 1,
    batch_size: int = SAMPLE_BATCH_SIZE,
    **options: Any,
) -> list[str]:
    """Continue prompts, and return the continuations without the prompts: those of the first prompt come first.

    Args:
        model, tokenizer, prompts: as for generate_stream.
        num_samples: samples of each prompt.
        batch_size: most samples at a time.
        options: of generate_stream, such as seed, max_new_tokens, temperature and stop.

    Raises what generate_stream raises.
    """
    n_prompts = 1 if isinstance(prompts, str) else len(prompts)
    texts = [""] * (n_prompts * num_samples)
    for piece in generate_stream(
        model,
        tokenizer,
        prompts,
        num_samples=num_samples,
        batch_size=batch_size,
        **options,
    ):
        texts[piece.sample] += piece.text
    return texts


def in_order(pieces: Iterable[TextPiece]) -> Iterator[TextPiece]:
    """The pieces of one sample after another, from a stream in which several samples take turns.

    The pieces of the earliest sample that has not ended are passed on at once, and the pieces of later samples wait.
    """
    current = 0  # number of the earliest sample that has not ended
    held: dict[int, list[TextPiece]] = {}  # pieces that wait, by the number of their sample
    for piece in pieces:
        held.setdefault(piece.sample, []).append(piece)
        while current in held:
            ready = held.pop(current)
            yield from ready
            if ready[-1].finish is None:
                break
            current += 1

    # A stream that was interrupted leaves samples that have not ended, and pieces that wait for them.
    for sample in sorted(held):
        yield from held[sample]


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Ids of a prompt; of an empty one what starts a document: end-of-text, or id 0 where there is none."""
    return [*tokenizer.before, *tokenizer.encode(prompt)] or [tokenizer.end_of_text or 0]


class TextStream:
    """Turns ids that arrive one at a time into text that never ends within a character or a stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        """Take the stop strings; UserError for one that is empty."""
        if not all(stop):
            raise UserError("a stop string must not be empty")
        self.tokenizer = tokenizer
        self.stop = stop
        self.stopped = False  # whether a stop string was met; nothing may be pushed after it
        self._pending: list[int] = []  # newest ids, the last of which may end within a character
        self._n_certain = 0  # characters in the text of the pending ids that are certain
        self._held = ""  # certain characters with which a stop string might begin

    def push(self, token: int) -> str:
        """Text that is certain now that token has come."""
        self._pending.append(token)
        text = self.tokenizer.decode(self._pending)

        # A character that is not complete yet decodes to one replacement character, at the end.
        certain = text.removesuffix(REPLACEMENT)
        piece = certain[self._n_certain :]
        if certain == text:
            self._pending = []
            self._n_certain = 0
        else:
            self._n_certain = len(certain)
        return self._before_stop(piece)

    def finish(self) -> str:
        """Whatever text is left, complete characters or not."""
        rest = self.tokenizer.decode(self._pending)[self._n_certain :]
        text = self._before_stop(rest)
        if not self.stopped:
            text += self._held

        self._pending = []
        self._n_certain = 0
        self._held = ""
        return text

    def _before_stop(self, piece: str) -> str:
        """What may be shown of the held text and a new piece: up to a stop string, or to what might become one."""
        text = self._held + piece

        # Of several stop strings, the one that is complete first ends the sample.
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

        n_shown = len(text) - self._n_begun(text)
        self._held = text[n_shown:]
        return text[:n_shown]

    def _n_begun(self, text: str) -> int:
        """Number of characters at the end of a text with which a stop string begins; the most, where several fit."""
        longest = max((len(stop) for stop in self.stop), default=1) - 1
        for n_characters in range(min(longest, len(text)), 0, -1):
            ending = text[-n_characters:]
            if any(stop.startswith(ending) for stop in self.stop):
                return n_characters
        return 0


def _whole_number(name: str, value: Any, *, least: int | None = None) -> int:
    """A whole number of any type, such as numpy's; UserError for another value, or one below the least."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UserError(f"{name} must be a whole number, got {value!r}") from None
    if least is not None and number < least:
        raise UserError(f"{name} must be at least {least}, got {number}")
    return number


def _checked(**rules: Any) -> Rules:
    """The rules; UserError for an unknown name, with the nearest option, or a value that does not fit."""
    own = [field.name for field in fields(Rules)]
    for name in rules:
        if name not in own:
            known = [*inspect.signature(generate_stream).parameters, *own]
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise UserError(f"unknown option {name}{hint}")
    try:
        return Rules(**rules)
    except ValidationError as error:
        raise UserError(first_mistake(error)) from None


def _encode_prompts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each prompt; a UserError names the prompt where there are several."""
    encoded = []
    for number, text in enumerate(texts, start=1):
        try:
            encoded.append(prompt_ids(tokenizer, text))
        except UserError as error:
            if len(texts) == 1:
                raise
            raise UserError(f"prompt {number}: {error}") from None
    return encoded


def _next_text(
    stream: TextStream, token: int, *, ends_document: bool, is_last: bool
) -> tuple[str, str | None]:
    """Text that one more token makes certain, and how the sample ends with it: end_of_text, stop, length or None."""
    if ends_document:
        text = stream.finish()
        finish = "end_of_text"
    else:
        text = stream.push(token)
        finish = None
        if is_last and not stream.stopped:
            text += stream.finish()
            finish = "length"

    # A stop string may stand complete only in what finish gives.
    if stream.stopped:
        finish = "stop"
    return text, finish
