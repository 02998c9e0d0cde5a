"""Continue prompts with a model: as a stream of pieces, or as complete texts."""

import inspect
import operator
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from pydantic import ValidationError

from gptmini.generation.compiled import CompiledSession
from gptmini.generation.rules import Rules
from gptmini.generation.sample import MOST_SAMPLES, Request, TextPiece
from gptmini.generation.session import Session
from gptmini.model import GPT, in_eval_mode, is_packed
from gptmini.settings import (
    SAMPLE_BATCH_SIZE,
    SAMPLE_SEED,
    SAMPLE_TEMPERATURE,
    SAMPLE_TOKENS,
    first_error,
)
from gptmini.system.errors import UserError, did_you_mean
from gptmini.tokenizer import Tokenizer


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
    request = checked_request(
        generate_stream,
        seed=seed,
        stop=stop,
        ignore_end_of_text=ignore_end_of_text,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        **rules,
    )
    request = replace(request, n_likeliest=0 if log_probabilities else None)
    if compile and is_packed(model):
        raise UserError(
            "a packed model cannot be compiled; remove compile=True or the call of pack()"
        )
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    if len(texts) * num_samples > MOST_SAMPLES:
        raise UserError(
            f"num_samples times the number of prompts must be at most {MOST_SAMPLES:,}, "
            f"got {num_samples} and {len(texts)}; for more, call again with another seed"
        )

    ids = _encode_prompts(tokenizer, texts)
    capacity = None  # the context; less than the context if every sample is shorter
    if request.rules.max_new_tokens is not None:
        capacity = max(map(len, ids), default=0) + request.rules.max_new_tokens

    with in_eval_mode(model):
        session = (CompiledSession if compile else Session)(
            model,
            tokenizer,
            batch_size=min(batch_size, len(ids) * num_samples),
            capacity=capacity,
        )
        for each in request.for_prompts(ids, num_samples):
            session.add(each)
        yield from session.pieces()


def generate(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: str | Sequence[str],
    *,
    batch_size: int = SAMPLE_BATCH_SIZE,
    **options: Any,
) -> list[str]:
    """Return the texts that continue prompts, without the prompts. The samples of the first prompt come first.

    The arguments and the errors are those of generate_stream. Up to batch_size samples are drawn at a time.
    """
    texts: dict[int, str] = defaultdict(str)  # by the number of the sample
    for piece in generate_stream(model, tokenizer, prompts, batch_size=batch_size, **options):
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


def checked_request(
    function: Callable[..., Any],
    /,
    *,
    seed: int,
    stop: str | Sequence[str] | None,
    ignore_end_of_text: bool,
    **rules: Any,
) -> Request:
    """Return a request without a prompt. Raises UserError if a name is unknown or a value is invalid.

    If a name is unknown, the error suggests a similar option of the function that the user called.
    """
    seed = checked_integer("seed", seed)
    names = [field.name for field in fields(Rules)]
    for name in rules:
        if name not in names:
            options = [*inspect.signature(function).parameters, *names]
            fix = did_you_mean(name, options, otherwise=f"choose from {', '.join(options)}")
            raise UserError(f"unknown option {name}; {fix}")
    try:
        checked_rules = Rules(**rules)
    except ValidationError as error:
        raise UserError(first_error(error)) from None
    return Request(
        rules=checked_rules,
        seed=seed,
        stop=[stop] if isinstance(stop, str) and stop else list(stop or ()),
        ignore_end_of_text=ignore_end_of_text,
    )


def checked_integer(name: str, value: Any, *, least: int | None = None) -> int:
    """Return an integer of Python or NumPy as an int. Raise UserError for other types and for integers below least."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UserError(f"{name} must be an integer, got {value!r}") from None
    if least is not None and number < least:
        raise UserError(f"{name} must be at least {least}, got {number}")
    return number


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
