"""The model of a server: what clients may ask of it, their prompts as ids, and their requests to the engine."""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from gptmini.data import checked_messages
from gptmini.generation import Request, prompt_ids
from gptmini.serving.engine import Engine, T
from gptmini.serving.schema import SAMPLING, ChatRequest, CompletionRequest, RequestError
from gptmini.settings import first_error
from gptmini.system.errors import UserError
from gptmini.tokenizer import Tokenizer, chat_encoder_of


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings that the operator of a server chooses."""

    model: str  # the id of the model
    # The options of requests that do not set them. rules.max_new_tokens limits every answer.
    request: Request
    seed: int | None = None  # None: a new seed for each request
    max_bytes: int = 2**20  # maximum number of bytes of a request body
    allowed_hosts: Sequence[str] = ()
    allow_origins: Sequence[str] = ()
    api_key: str | None = None


class ServedModel:
    """A model with its engine, its tokenizer and the settings of the server."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, settings: ServerSettings) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.settings = settings
        self.context = engine.context
        # A token stands for at most `longest_token` bytes, and a character has at least one byte.
        self.longest_token = max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.n_vocab))

    def check_name(self, name: str | None) -> None:
        """Raise RequestError if a client names another model."""
        if name not in (None, self.settings.model):
            raise RequestError(
                f"unknown model {name:.80}; use {self.settings.model}",
                status=404,
                param="model",
                code="model_not_found",
            )

    def check(self, body: CompletionRequest | ChatRequest, *, n_prompts: int) -> None:
        """Raise RequestError if the model, the number of answers or stream_options is wrong."""
        self.check_name(body.model)
        n_choices = body.n * n_prompts
        most = self.engine.max_open  # more can never wait together
        if not 1 <= n_choices <= most:
            raise RequestError(
                f"n times the number of prompts must be 1 to {most}, got {n_choices}", param="n"
            )
        if body.stream_options and not body.stream:
            raise RequestError("stream_options requires stream: true", param="stream_options")

    def text_ids(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a prompt. Raises RequestError if the text is too long to be encoded."""
        self._check_length(text, "prompt")
        if add_special_tokens:
            return prompt_ids(self.tokenizer, text)
        return chat_encoder_of(self.tokenizer).ids_with_special_tokens(text)

    def chat_ids(
        self, messages: list[Any], names: dict[str, Any], *, is_continued: bool = False
    ) -> list[int]:
        """Return the ids of a chat up to its next answer. `names` are variables of the chat template.

        If is_continued is true and the last message is an answer, this message is the start of the next answer.

        Raises RequestError if the text of the chat is too long to be encoded. Raises UserError if the messages have a
        different form, or if the template rejects them.
        """
        messages = checked_messages(messages)
        encoder = chat_encoder_of(self.tokenizer).with_names(names)
        begun = ""
        if is_continued and messages[-1]["role"] == "assistant":
            *messages, answer = messages
            begun = answer["content"] and encoder.leading + answer["content"]
        text = encoder.prompt_text(messages)
        self._check_length(text + begun, "messages")
        return [*encoder.prompt(messages, text=text), *self.tokenizer.encode(begun)]

    def check_ids(self, ids: list[int], param: str) -> None:
        """Raise RequestError if a prompt has no ids, unknown ids, or more ids than the model can see."""
        n_vocab = self.tokenizer.n_vocab
        if not ids:
            raise RequestError("a prompt must have at least one token", param=param)
        if max(ids) >= n_vocab:
            raise RequestError(f"token ids must be below {n_vocab}, got {max(ids)}", param=param)
        if len(ids) > self.context:
            raise self._context_exceeded(param, str(len(ids)))

    def _check_length(self, text: str, param: str) -> None:
        # This takes less time than encoding a long text.
        if len(text) > self.context * self.longest_token:
            n_tokens = math.ceil(len(text) / self.longest_token)
            raise self._context_exceeded(param, f"at least {n_tokens}")

    def _context_exceeded(self, param: str, n_tokens: str) -> RequestError:
        # Programs look for these words of OpenAI.
        return RequestError(
            f"This model's maximum context length is {self.context} tokens. However, your {param} resulted in "
            f"{n_tokens} tokens.",
            param=param,
            code="context_length_exceeded",
        )

    def requests(
        self,
        body: CompletionRequest | ChatRequest,
        prompts: list[list[int]],
        *,
        most_tokens: int | None = None,
        n_likeliest: int | None,
        leading: str = "",
    ) -> list[Request]:
        """Return the requests to the engine: body.n for each prompt. The server's settings fill in missing options.

        most_tokens limits the length of an answer. Raises RequestError if a sampling option has a wrong value.
        """
        default = self.settings.request
        if body.max_tokens == 0:
            raise RequestError("max_tokens: 0 requires echo: true", param="max_tokens")
        asked = None if body.max_tokens == -1 else body.max_tokens
        limits = (default.rules.max_new_tokens, asked, most_tokens)
        options = body.model_dump(include=SAMPLING, exclude_none=True)
        options["max_new_tokens"] = min(limit for limit in limits if limit is not None)
        try:
            rules = replace(default.rules, **options)
        except ValidationError as error:
            raise RequestError(first_error(error)) from None

        seed = self.settings.seed if body.seed is None else body.seed
        ignore = default.ignore_end_of_text if body.ignore_eos is None else body.ignore_eos
        request = replace(
            default,
            rules=rules,
            seed=random.getrandbits(63) if seed is None else seed,
            stop=body.stops or default.stop,
            ignore_end_of_text=ignore,
            n_likeliest=n_likeliest,
            leading=leading,
        )
        return list(request.for_prompts(prompts, body.n))


async def in_thread(param: str, function: Callable[..., T], *arguments: Any) -> T:
    """Run a function in a thread. Raises RequestError for a mistake in this field of the request."""
    try:
        return await asyncio.to_thread(function, *arguments)
    except UserError as error:
        raise RequestError(f"{param}: {error!s:.300}", param=param) from None
