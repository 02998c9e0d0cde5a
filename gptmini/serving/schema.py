"""The requests that clients of OpenAI's API send, and the responses that they receive.

Source: https://platform.openai.com/docs/api-reference, the pages about completions and chat.
"""

from typing import Annotated, Any, TypeVar, cast

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError
from typing_extensions import TypedDict  # pydantic requires this class before Python 3.12

from gptmini.console.printable import printable
from gptmini.system.errors import similar
from gptmini.tokenizer import Tokenizer

MOST_CHOICES = 128  # maximum number of answers to one request; the same limit as in OpenAI's API
MOST_LIKELIEST = 20  # maximum of top_logprobs; the same limit as in OpenAI's API
MOST_STOPS = 128  # maximum number of stop strings; each of them takes time after each token
COMPLETION_TOKENS = 16  # length of a completion by default, as in OpenAI's API
SAMPLING = {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"}  # fields of Rules
# Fields that never change the answers of this server: OpenAI's, vLLM's, llama.cpp's and Open WebUI's.
IGNORED = (
    {"user", "metadata", "store", "service_tier", "safety_identifier", "parallel_tool_calls"}
    | {"prompt_cache_key", "prompt_cache_retention", "cache_salt", "priority", "request_id"}
    | {"skip_special_tokens", "spaces_between_special_tokens", "include_reasoning", "id_slot"}
    | {"cache_prompt", "timings_per_token", "return_progress", "session_id", "chat_id"}
)
# Fields that are accepted only with these values, because the values do not change the answer. Other fields that the
# server does not have are accepted with a value that means "off", such as false, 0 or an empty list.
NEUTRAL: dict[str, tuple] = {
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    **dict.fromkeys(("best_of", "length_penalty", "repeat_penalty", "typical_p", "tfs"), (1,)),
    "add_generation_prompt": (True,),
}
T = TypeVar("T")
# Prompts of a request. Checking more would take longer than a client waits for /health.
MOST_PROMPTS = 2048
R = TypeVar("R", bound=BaseModel)
# A list that is not checked further after its first wrong element.
Several = Annotated[list[T], Field(fail_fast=True)]
Limit = Annotated[int, Field(ge=-1)]  # a number of tokens; -1: no limit


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
        # The text of a client may have half a surrogate pair, which UTF-8 does not allow.
        message = printable(message)
        param = param and printable(param)
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class StreamOptions(TypedDict, total=False):
    """The options of a stream. Others are ignored."""

    include_usage: bool | None


class _Sampling(BaseModel):
    """The fields that requests for completions and for chats have. None means that the server's default is used."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str | None = None
    n: int = Field(default=1, ge=1, le=MOST_CHOICES)
    temperature: float | None = None
    top_p: float | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None  # 64 bits, as in OpenAI's API
    stop: str | Annotated[Several[str], Field(max_length=MOST_STOPS)] = ""
    stream: bool = False
    stream_options: StreamOptions = {}
    # These fields are not part of OpenAI's API. Other servers of open models use the same names.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None

    @property
    def stops(self) -> list[str]:
        """The strings at which an answer ends. An empty string has no effect, as in llama.cpp."""
        return [stop for stop in ([self.stop] if isinstance(self.stop, str) else self.stop) if stop]


class CompletionRequest(_Sampling):
    """The body of a request to /v1/completions."""

    prompt: (
        str
        | Annotated[Several[str], Field(max_length=MOST_PROMPTS)]
        | Several[NonNegativeInt]
        | Annotated[Several[Several[NonNegativeInt]], Field(max_length=MOST_PROMPTS)]
    ) = ""
    max_tokens: Limit = COMPLETION_TOKENS
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=MOST_LIKELIEST)
    # False: the strings of special tokens in a prompt become their ids, and no ids are put before it.
    add_special_tokens: bool = True

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts. A prompt is a string or a list of ids."""
        is_ids = isinstance(self.prompt, list) and self.prompt and isinstance(self.prompt[0], int)
        is_one = isinstance(self.prompt, str) or is_ids
        return cast("list[str | list[int]]", [self.prompt] if is_one else self.prompt)


class ChatRequest(_Sampling):
    """The body of a request to /v1/chat/completions."""

    messages: Several[dict[str, Any]] = Field(min_length=1)
    max_tokens: Limit = Field(
        default=-1, validation_alias=AliasChoices("max_completion_tokens", "max_tokens")
    )
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MOST_LIKELIEST)
    chat_template_kwargs: dict[str, Any] = {}
    # vLLM's field: the last message is the start of the answer.
    continue_final_message: bool = False


class AttentionRequest(BaseModel):
    """The body of a request to /attention, which the web page sends. It has a text or the messages of a chat."""

    model_config = ConfigDict(extra="allow", strict=True)

    text: str = ""
    messages: Several[dict[str, Any]] | None = None


def parse(kind: type[R], body: Any) -> R:
    """Return a request of the class `kind` from the JSON of its body. A field that is null counts as missing.

    Raises RequestError if a field is missing, unknown or unsupported, or if a field has a wrong type or value.
    """
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object")
    try:
        request = kind.model_validate({k: v for k, v in body.items() if v is not None})
    except ValidationError as error:
        # A field that may have several types has an error for each type. A wrong value tells more than a wrong type.
        first = min(error.errors(include_url=False), key=lambda one: one["type"].endswith("_type"))
        field = str(first["loc"][0]) if first["loc"] else None
        raise RequestError(f"{field}: {first['msg']}", param=field) from None

    for name, value in (request.model_extra or {}).items():
        # A field with a typing mistake does not mean "off".
        close = similar(name, kind.model_fields, cutoff=0.85)
        is_off = not value and not close and name not in NEUTRAL
        if name in IGNORED or is_off or value in NEUTRAL.get(name, ()):
            continue
        fix = f"did you mean {close}?" if close else "remove this field"
        raise RequestError(
            f"the field {name:.80} is not supported, got {value!r:.80}; {fix}", param=f"{name:.80}"
        )
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
