"""Chats: from the body of a request to the answers to its last message."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from gptmini.generation import TextPiece
from gptmini.serving.guard import json_of
from gptmini.serving.responses import Responder
from gptmini.serving.schema import ChatRequest, RequestError, parse, token_text
from gptmini.serving.served_model import ServedModel, in_thread
from gptmini.tokenizer import Tokenizer, chat_encoder_of


async def answer_chat(model: ServedModel, request: HTTPRequest) -> Response:
    """Return answers to the last message of a chat."""
    body = parse(ChatRequest, await json_of(request, model.settings.max_bytes))
    model.check(body, n_prompts=1)
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs requires logprobs: true", param="top_logprobs")

    is_continued = body.continue_final_message
    if is_continued and body.messages[-1].get("role") != "assistant":
        raise RequestError(
            "continue_final_message requires a last message of the role assistant",
            param="continue_final_message",
        )
    read = partial(model.chat_ids, is_continued=is_continued)
    ids = await in_thread("messages", read, body.messages, body.chat_template_kwargs)
    model.check_ids(ids, "messages")
    requests = model.requests(
        body,
        [ids],
        # The model must see the whole chat until the answer ends. It does not read the last token of the answer.
        most_tokens=model.context - len(ids) + 1,
        n_likeliest=body.top_logprobs if body.logprobs else None,
        leading="" if is_continued else chat_encoder_of(model.tokenizer).leading,
    )
    return await Responder(
        model=model,
        object_name="chat.completion.chunk" if body.stream else "chat.completion",
        body=body,
        requests=requests,
        prompts=[ids],
        choice=partial(_choice, model, body),
    ).respond(request)


def _choice(
    model: ServedModel,
    body: ChatRequest,
    index: int,
    pieces: list[TextPiece],
    is_first: bool,
) -> dict[str, Any]:
    text = "".join(piece.text for piece in pieces)
    message = {"content": text} if is_first or text else {}
    if is_first:
        message |= {"role": "assistant", "refusal": None}
    return {
        "delta" if body.stream else "message": message,
        "logprobs": _logprobs(pieces, model.tokenizer) if body.logprobs else None,
    }


def _logprobs(pieces: Sequence[TextPiece], tokenizer: Tokenizer) -> dict[str, Any]:
    def entry(token: int, log_probability: float | None) -> dict[str, Any]:
        return {
            "token": token_text(tokenizer, token),
            "logprob": log_probability,
            "bytes": list(tokenizer.token_bytes(token)),
        }

    content = [
        entry(piece.token, piece.log_probability)
        | {"top_logprobs": [entry(*pair) for pair in piece.likeliest]}
        for piece in pieces
    ]
    return {"content": content, "refusal": None}
