"""The requests that clients of OpenAI's API send, and the responses that they receive.

Source: https://platform.openai.com/docs/api-reference, the pages about completions and chat.
"""

import difflib
import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)

from gptmini.serving.engine import AnswerPiece
from gptmini.tokenizer import Tokenizer

MOST_CHOICES = 128  # maximum number of answers to one request; the same limit as in OpenAI's API
MOST_LIKELIEST = 20  # maximum of top_logprobs; the same limit as in OpenAI's API
MOST_STOPS = 16  # maximum number of stop strings
COMPLETION_TOKENS = 16  # length of a completion by default, as in OpenAI's API
# Clients may send these fields. The fields do not change the answers of a single model.
IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
# Fields that are accepted only with a value that does not change the answer.
NEUTRAL: dict[str, tuple] = {
    "best_of": (None, 1),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
    "suffix": (None, ""),
    "tools": (None, []),
    "tool_choice": (None, "none"),
    "parallel_tool_calls": (None, True, False),
    "functions": (None, []),
    "function_call": (None, "none"),
    "modalities": (None, ["text"]),
    "response_format": (None, {"type": "text"}),
    "reasoning_effort": (None, "none"),
    "verbosity": (None, "medium"),
}
StopString = Annotated[str, Field(min_length=1)]
T = TypeVar("T")
MOST_PROMPTS = (
    2048  # prompts of a request; checking more would take longer than a client waits for /health
)
# A list that is not checked further after its first wrong element.
Several = Annotated[list[T], Field(fail_fast=True)]
ResponseKind = Literal["chat.completion", "chat.completion.chunk", "text_completion"]
# Maps the reason why an answer ended to OpenAI's name for this reason.
REASONS = {"end_of_text": "stop", "stop": "stop", "length": "length"}


class RequestError(Exception):
    """The error for a request that cannot be answered. Its JSON has the same form as in OpenAI's API."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class StreamOptions(BaseModel):
    """The options of a streamed answer."""

    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool | None = None


class _Sampling(BaseModel):
    """The fields that requests for completions and for chats have. None means that the server's default is used."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES)
    max_tokens: PositiveInt | None = None
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = None
    stop: StopString | Annotated[Several[StopString], Field(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # These fields are not part of OpenAI's API. Other servers of open models use the same names.
    top_k: PositiveInt | None = None
    min_p: float | None = Field(default=None, gt=0, le=1)
    repetition_penalty: float | None = Field(default=None, ge=1e-3, le=1e3)
    ignore_eos: bool | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def stops(self) -> list[str]:
        """The strings at which an answer ends."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])


class CompletionRequest(_Sampling):
    """The body of a request to /v1/completions."""

    prompt: (
        str
        | Annotated[Several[str], Field(max_length=MOST_PROMPTS)]
        | Several[NonNegativeInt]
        | Annotated[Several[Several[NonNegativeInt]], Field(max_length=MOST_PROMPTS)]
    ) = ""
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MOST_LIKELIEST)


class ChatRequest(_Sampling):
    """The body of a request to /v1/chat/completions."""

    messages: Several[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_LIKELIEST)


class AttentionRequest(BaseModel):
    """The body of a request to /attention, which the web page sends. It has a text or the messages of a chat."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = ""
    messages: Several[dict[str, Any]] | None = None


def parse(kind: type[_Sampling], body: Any) -> Any:
    """Return a request of the class `kind` from the JSON of its body.

    Raises RequestError if a field is missing, unknown or unsupported, or if a field has a wrong type or value.
    """
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object")
    try:
        request = kind.model_validate(body)
    except ValidationError as error:
        # A field that may have several types has an error for each type. A wrong value tells more than a wrong type.
        first = min(error.errors(include_url=False), key=lambda one: one["type"].endswith("_type"))
        field = str(first["loc"][0]) if first["loc"] else None
        raise RequestError(f"{field}: {first['msg']}", param=field) from None

    for name, value in (request.model_extra or {}).items():
        if name in IGNORED:
            continue
        if name not in NEUTRAL:
            close = difflib.get_close_matches(name, [*kind.model_fields, *NEUTRAL], n=1)
            fix = f"did you mean {close[0]}?" if close else "remove this field"
            raise RequestError(f"unknown field {name!r:.80}; {fix}")
        if value not in NEUTRAL[name]:
            raise RequestError(f"{name} is not supported, got {value!r:.80}", param=name)
    return request


def token_text(tokenizer: Tokenizer, token: int) -> str:
    r"""Return the text of a token.

    If the bytes of the token are not valid UTF-8, return for example bytes:\xe2\x80, as OpenAI's API does. Therefore,
    different tokens have different texts.
    """
    data = tokenizer.token_bytes(token)
    try:
        return data.decode() or tokenizer.decode([token])
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(pieces: Sequence[AnswerPiece], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the log-probabilities of the tokens in an answer to a chat, or in a part of the answer."""

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


def completion_logprobs(
    pieces: Sequence[AnswerPiece], tokenizer: Tokenizer, *, offset: int
) -> dict[str, Any]:
    """Return the log-probabilities of the tokens in a completion, or in a part of it.

    offset is the number of characters of an echoed prompt.
    """
    return {
        "tokens": [token_text(tokenizer, piece.token) for piece in pieces],
        "token_logprobs": [piece.log_probability for piece in pieces],
        "top_logprobs": [
            {token_text(tokenizer, token): value for token, value in piece.likeliest}
            for piece in pieces
        ],
        "text_offset": [offset + piece.offset for piece in pieces],
    }


def usage(n_prompt: int, n_drawn: int) -> dict[str, int]:
    """Return the numbers of tokens in the prompts, in the answers, and in total."""
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_drawn,
        "total_tokens": n_prompt + n_drawn,
    }


def response_head(kind: ResponseKind, model: str) -> dict[str, Any]:
    """Return the fields at the start of each response: id, object, created and model."""
    prefix = "cmpl" if kind == "text_completion" else "chatcmpl"
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }
