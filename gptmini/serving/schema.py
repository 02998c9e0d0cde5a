"""What clients of OpenAI's API send, and what they receive.

Source: https://platform.openai.com/docs/api-reference, completions and chat.
"""

import time
import uuid
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from gptmini.serving.engine import AnswerPiece
from gptmini.tokenizer import Tokenizer

MOST_CHOICES = 128  # of one request, as OpenAI allows
MOST_LIKELIEST = 20  # tokens with log-probabilities next to each token, as OpenAI allows
COMPLETION_TOKENS = 16  # OpenAI's default length of a completion
# Fields that change no answer of a single model; clients may send them.
IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
# Fields that are accepted with the value that changes nothing.
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
# OpenAI's words for why an answer ended.
REASONS = {"end_of_text": "stop", "stop": "stop", "length": "length"}


class RequestError(Exception):
    """A request that cannot be answered; its JSON has OpenAI's form."""

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
    """Options of a stream."""

    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool | None = None


class _Sampling(BaseModel):
    """Fields that both kinds of requests have; None means the server's default."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES)
    max_tokens: PositiveInt | None = None
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Extensions, with the names that other servers of open models use too.
    top_k: PositiveInt | None = None
    min_p: float | None = Field(default=None, gt=0, le=1)
    repetition_penalty: float | None = Field(default=None, ge=1e-3, le=1e3)
    ignore_eos: bool | None = None

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])


class CompletionRequest(_Sampling):
    """The body of a request to /v1/completions."""

    prompt: str | list[str] | list[NonNegativeInt] | list[list[NonNegativeInt]] = ""
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MOST_LIKELIEST)


class ChatRequest(_Sampling):
    """The body of a request to /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_LIKELIEST)


class AttentionRequest(BaseModel):
    """The body of a request to /attention, which the page sends: a text or the messages of a chat."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = ""
    messages: list[dict[str, Any]] | None = None


def parse(kind: type[_Sampling], body: Any) -> Any:
    """Return a request of a kind from the JSON of its body.

    Raises RequestError if a field is missing, unknown, unsupported, or has a wrong type or value.
    """
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object")
    try:
        request = kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = str(first["loc"][0]) if first["loc"] else None
        raise RequestError(f"{field}: {first['msg']}", param=field) from None

    for name, value in (request.model_extra or {}).items():
        if name in IGNORED:
            continue
        if name not in NEUTRAL:
            raise RequestError(f"unknown field {name}", param=name)
        if value not in NEUTRAL[name]:
            raise RequestError(f"{name} is not supported, got {value!r:.80}", param=name)
    return request


class TokenTexts:
    """The text and the bytes of single tokens, as log-probabilities show them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def text(self, token: int) -> str:
        """Return the text of a token; an incomplete character becomes U+FFFD."""
        return self._tokenizer.decode([token])

    def entry(self, token: int, log_probability: float) -> dict[str, Any]:
        """Return a token with its log-probability, as chats show it."""
        return {
            "token": self.text(token),
            "logprob": log_probability,
            "bytes": list(self._tokenizer.token_bytes(token)),
        }


def chat_logprobs(pieces: list[AnswerPiece], texts: TokenTexts) -> dict[str, Any]:
    """Return the log-probabilities of a chat's answer, or of some of its tokens."""
    content = []
    for piece in pieces:
        assert piece.log_probability is not None
        content.append(
            texts.entry(piece.token, piece.log_probability)
            | {"top_logprobs": [texts.entry(*pair) for pair in piece.likeliest]}
        )
    return {"content": content, "refusal": None}


def completion_logprobs(
    pieces: list[AnswerPiece], texts: TokenTexts, *, offset: int
) -> dict[str, Any]:
    """Return the log-probabilities of a completion, or of some of its tokens, which start at a character offset."""
    tokens = [texts.text(piece.token) for piece in pieces]
    offsets = []
    for piece in pieces:
        offsets.append(offset)
        offset += len(piece.text)
    return {
        "tokens": tokens,
        "token_logprobs": [piece.log_probability for piece in pieces],
        "top_logprobs": [
            {texts.text(token): value for token, value in piece.likeliest} for piece in pieces
        ],
        "text_offset": offsets,
    }


def usage(n_prompt: int, n_drawn: int) -> dict[str, int]:
    """Return the counts of tokens."""
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_drawn,
        "total_tokens": n_prompt + n_drawn,
    }


def head(
    kind: Literal["chat.completion", "chat.completion.chunk", "text_completion"], model: str
) -> dict[str, Any]:
    """Return the fields with which each answer starts."""
    prefix = "cmpl" if kind == "text_completion" else "chatcmpl"
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }
