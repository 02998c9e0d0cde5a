"""Completions: from the body of a request to the continuations of its prompts."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from gptmini.generation import TextPiece
from gptmini.serving.guard import json_of
from gptmini.serving.inspection import score_prompt
from gptmini.serving.responses import Responder
from gptmini.serving.schema import CompletionRequest, parse, token_text
from gptmini.serving.served_model import ServedModel, in_thread
from gptmini.tokenizer import Tokenizer


class Echo(NamedTuple):
    """The prompt at the start of its completions. It is empty unless the client asked for it."""

    text: str = ""
    # The tokens with their log-probabilities, if the client asked for them.
    pieces: Sequence[TextPiece] = ()


async def complete(model: ServedModel, request: HTTPRequest) -> Response:
    """Return continuations of one or several prompts."""
    body = parse(CompletionRequest, await json_of(request, model.settings.max_bytes))
    model.check(body, n_prompts=len(body.prompts))

    prompts = await in_thread("prompt", _prompts, model, body)
    requests = []
    if not (body.echo and body.max_tokens == 0):
        requests = model.requests(body, prompts, n_likeliest=body.logprobs)
    echoes = [Echo()] * len(prompts)
    if body.echo:
        echoes = [
            await _echo(model, body, *each) for each in zip(body.prompts, prompts, strict=True)
        ]
    return await Responder(
        model=model,
        object_name="text_completion",
        body=body,
        requests=requests,
        prompts=prompts,
        choice=partial(_choice, model, body, echoes),
    ).respond(request)


def _prompts(model: ServedModel, body: CompletionRequest) -> list[list[int]]:
    prompts = []
    for prompt in body.prompts:
        if isinstance(prompt, str):
            ids = model.text_ids(prompt, add_special_tokens=body.add_special_tokens)
        else:
            ids = prompt
        model.check_ids(ids, "prompt")
        prompts.append(ids)
    return prompts


async def _echo(
    model: ServedModel, body: CompletionRequest, prompt: str | list[int], ids: list[int]
) -> Echo:
    tokenizer = model.tokenizer
    text = prompt if isinstance(prompt, str) else tokenizer.decode(prompt)
    if body.logprobs is None:
        return Echo(text)

    n_before = 0  # ids that are not part of the text
    if isinstance(prompt, str) and body.add_special_tokens:
        n_before = len(tokenizer.prefix_ids) or int(not prompt)  # see prompt_ids
    score = partial(
        score_prompt,
        model.engine.model,
        tokenizer,
        ids,
        n_before=n_before,
        n_characters=len(text),
        n_likeliest=body.logprobs,
    )
    return Echo(text, await asyncio.wrap_future(model.engine.call(score)))


def _choice(
    model: ServedModel,
    body: CompletionRequest,
    echoes: Sequence[Echo],
    index: int,
    pieces: list[TextPiece],
    is_first: bool,
) -> dict[str, Any]:
    echo = echoes[index // body.n]
    text = "".join(piece.text for piece in pieces)
    pieces = [piece._replace(offset=piece.offset + len(echo.text)) for piece in pieces]
    if is_first:
        text = echo.text + text
        pieces = [*echo.pieces, *pieces]
    return {
        "text": text,
        "logprobs": None if body.logprobs is None else _logprobs(pieces, model.tokenizer),
    }


def _logprobs(pieces: Sequence[TextPiece], tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "tokens": [token_text(tokenizer, piece.token) for piece in pieces],
        "token_logprobs": [piece.log_probability for piece in pieces],
        "top_logprobs": [_top_logprobs(piece, tokenizer) for piece in pieces],
        "text_offset": [piece.offset for piece in pieces],
    }


def _top_logprobs(piece: TextPiece, tokenizer: Tokenizer) -> dict[str, float] | None:
    if piece.log_probability is None:
        return None
    pairs = [*piece.likeliest, (piece.token, piece.log_probability)]
    return {token_text(tokenizer, token): value for token, value in pairs}
