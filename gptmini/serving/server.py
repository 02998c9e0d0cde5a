"""The HTTP server. It has a web page and an API that OpenAI's clients can use."""

import asyncio
import base64
import errno
import hashlib
import math
import random
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from typing import Any

import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HTTPRequest
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from gptmini.data import ChatFormatError, checked_messages
from gptmini.generation import Rules, prompt_ids
from gptmini.generation.conversation import room_for_answer
from gptmini.generation.text import MOST_SAMPLES
from gptmini.serving.connection import Connection, connections_of
from gptmini.serving.engine import AnswerPiece, Engine, QueueFullError, Request, T
from gptmini.serving.guard import Guard, failed, has_key, json_of, not_found
from gptmini.serving.inspection import last_attention, score_prompt
from gptmini.serving.responses import Responder, queue_full
from gptmini.serving.schema import (
    SAMPLING,
    AttentionRequest,
    ChatRequest,
    CompletionRequest,
    RequestError,
    chat_logprobs,
    completion_logprobs,
    parse,
    response_head,
    token_text,
)
from gptmini.settings import first_error
from gptmini.system.errors import UserError
from gptmini.system.files import allow_open_files
from gptmini.tokenizer import Tokenizer, chat_encoder_of

FINISHING = 10  # seconds that open answers have to finish when the server stops
LONGEST_ERROR = 300  # maximum number of characters of an error message
MOST_SHOWN = 64  # maximum number of tokens for which the web page shows attention
# Maximum number of connections, most of which are idle. A connection takes up to 0.2 MB of memory.
MOST_CONNECTIONS = 1000
# Open files per connection. asyncio accepts several backlogs of connections before the first is dropped.
BACKLOGS = 8
FEWEST_CONNECTIONS = 8  # even if the system allows too few open files for them


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings that the operator of a server chooses."""

    model: str  # the id of the model
    # Sampling options for requests that do not set these options. The keys are names of fields of Rules.
    defaults: dict[str, Any]
    seed: int | None = None  # None: a new seed for each request
    stop: Sequence[str] = ()
    ignore_end_of_text: bool = False
    max_tokens: int  # maximum number of tokens of an answer
    max_bytes: int = 2**20  # maximum number of bytes of a request body
    allowed_hosts: Sequence[str] = ()
    allow_origins: Sequence[str] = ()
    api_key: str | None = None


class Server:
    """Answers HTTP requests with one model."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, settings: ServerSettings) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.settings = settings
        self.context = engine.context
        # A token stands for at most `longest_token` bytes, and a character has at least one byte.
        self.longest_token = max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.n_vocab))
        self.most_characters = self.context * self.longest_token
        self._page = files("gptmini.serving").joinpath("page.html").read_text(encoding="utf-8")
        self._page_policy = content_security_policy(self._page)

    def app(self) -> Starlette:
        """Return the ASGI application."""
        settings = self.settings
        middleware = [
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.allow_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],  # OpenAI's client for browsers sends headers of its own
            ),
            Middleware(Guard, api_key=settings.api_key, hosts=settings.allowed_hosts),
        ]

        routes = [
            Route("/", self.page),
            Route("/health", self.health),
            Route("/attention", self.attention, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.one_model),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat_completions, methods=["POST"]),
        ]

        handlers: dict[Any, Any] = {
            QueueFullError: queue_full,
            404: not_found,
            405: not_found,
            500: failed,
        }
        return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)

    async def page(self, request: HTTPRequest) -> Response:
        """Return the web page."""
        return HTMLResponse(self._page, headers={"Content-Security-Policy": self._page_policy})

    async def health(self, request: HTTPRequest) -> Response:
        """Return the settings that the web page needs, and the number of requests that are open.

        A client without the key learns only that the server is there.
        """
        health = {"status": "ok", "needs_key": self.settings.api_key is not None}
        if has_key(request, self.settings.api_key):
            health |= {
                "model": self.settings.model,
                "open": self.engine.n_open,
                "chats": self.tokenizer.chat_template is not None,
                "defaults": self.settings.defaults | {"seed": self.settings.seed},
            }
        return JSONResponse(health)

    async def attention(self, request: HTTPRequest) -> Response:
        """Return the attention between the last tokens of a text or a chat. The web page shows it."""
        asked = parse(AttentionRequest, await json_of(request, self.settings.max_bytes))
        if asked.messages is None:
            ids = await in_thread("text", self._text_ids, asked.text)
        else:
            ids = await in_thread("messages", self._chat_ids, asked.messages, {})
        look = partial(last_attention, self.engine.model, ids, MOST_SHOWN)
        weights = await asyncio.wrap_future(self.engine.call(look))
        shown = [token_text(self.tokenizer, i) for i in ids[-MOST_SHOWN:]]
        content = {"tokens": shown, "n_tokens": len(ids), "weights": weights}
        return await asyncio.to_thread(JSONResponse, content)  # it may have megabytes

    async def models(self, request: HTTPRequest) -> Response:
        """Return a list of all models. The list contains only one model."""
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def one_model(self, request: HTTPRequest) -> Response:
        """Return the description of the model."""
        self._check_model(request.path_params["name"])
        return JSONResponse(self._described())

    def _described(self) -> dict[str, Any]:
        return {"id": self.settings.model, "object": "model", "created": 0, "owned_by": "gptmini"}

    def _check_model(self, name: str | None) -> None:
        if name not in (None, self.settings.model):
            raise RequestError(
                f"unknown model {name:.80}; use {self.settings.model}",
                status=404,
                param="model",
                code="model_not_found",
            )

    def _check_number(self, n: int) -> int:
        most = self.engine.max_open  # more can never wait together
        if not 1 <= n <= most:
            raise RequestError(
                f"n times the number of prompts must be 1 to {most}, got {n}", param="n"
            )
        return n

    async def completions(self, request: HTTPRequest) -> Response:
        """Return continuations of one or several prompts."""
        asked = parse(CompletionRequest, await json_of(request, self.settings.max_bytes))
        self._check_model(asked.model)
        texts = asked.prompts
        n_choices = self._check_number(asked.n * len(texts))
        prompts = await in_thread("prompt", self._prompts, texts, asked.add_special_tokens)
        requests = self._requests(asked, prompts, asked.logprobs)

        # The texts and the tokens of the prompts that the answers repeat.
        echoes = [""] * len(prompts)
        scored: list[list[AnswerPiece]] = [[] for _ in prompts]
        if asked.echo:
            echoes = [
                text if isinstance(text, str) else self.tokenizer.decode(text) for text in texts
            ]
            if asked.logprobs is not None:
                scored = [
                    await self._scored(asked, *each)
                    for each in zip(texts, echoes, prompts, strict=True)
                ]

        def choice(
            index: int, pieces: list[AnswerPiece], *, is_first: bool, finish: str | None
        ) -> dict:
            number = index // asked.n
            echo = echoes[number]
            logprobs = None
            if asked.logprobs is not None:
                all_pieces = [piece._replace(offset=piece.offset + len(echo)) for piece in pieces]
                all_pieces = [*(scored[number] if is_first else []), *all_pieces]
                logprobs = completion_logprobs(all_pieces, self.tokenizer)
            return {
                "index": index,
                "text": (echo if is_first else "") + "".join(piece.text for piece in pieces),
                "logprobs": logprobs,
                "finish_reason": finish,
            }

        return await Responder(
            engine=self.engine,
            head=response_head("text_completion", self.settings.model),
            requests=requests,
            n_choices=n_choices,
            n_prompt=sum(map(len, prompts)),
            choice=choice,
        ).respond(request, asked)

    async def chat_completions(self, request: HTTPRequest) -> Response:
        """Return answers to the last message of a chat."""
        asked = parse(ChatRequest, await json_of(request, self.settings.max_bytes))
        self._check_model(asked.model)
        if asked.top_logprobs and not asked.logprobs:
            raise RequestError("top_logprobs requires logprobs: true", param="top_logprobs")
        n_choices = self._check_number(asked.n)
        names = asked.chat_template_kwargs
        ids = await in_thread("messages", self._chat_ids, asked.messages, names)
        self._check_ids(ids, "messages")
        n_likeliest = asked.top_logprobs if asked.logprobs else None
        requests = self._requests(asked, [ids], n_likeliest)

        def choice(
            index: int, pieces: list[AnswerPiece], *, is_first: bool, finish: str | None
        ) -> dict:
            text = "".join(piece.text for piece in pieces)
            message = {"content": text} if is_first or text else {}
            if is_first:
                message |= {"role": "assistant", "refusal": None}
            return {
                "index": index,
                "delta" if asked.stream else "message": message,
                "logprobs": chat_logprobs(pieces, self.tokenizer) if asked.logprobs else None,
                "finish_reason": finish,
            }

        kind = "chat.completion.chunk" if asked.stream else "chat.completion"
        return await Responder(
            engine=self.engine,
            head=response_head(kind, self.settings.model),
            requests=requests,
            n_choices=n_choices,
            n_prompt=len(ids),
            choice=choice,
        ).respond(request, asked)

    def _chat_ids(self, messages: list[Any], names: dict[str, Any]) -> list[int]:
        checked = checked_messages(messages)
        encoder = chat_encoder_of(self.tokenizer).with_names(names)
        self._check_length(encoder.prompt_text(checked), "messages")
        return encoder.prompt(checked)

    def _text_ids(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self._check_length(text, "prompt")
        if not add_special_tokens:
            return chat_encoder_of(self.tokenizer).ids_with_special_tokens(text)
        return prompt_ids(self.tokenizer, text)

    def _prompts(self, texts: list[str | list[int]], add_special_tokens: bool) -> list[list[int]]:
        return [
            self._check_ids(
                self._text_ids(text, add_special_tokens) if isinstance(text, str) else text,
                "prompt",
            )
            for text in texts
        ]

    def _check_length(self, text: str, param: str) -> None:
        # This takes less time than encoding a long text.
        if len(text) > self.most_characters:
            n_tokens = math.ceil(len(text) / self.longest_token)
            raise context_exceeded(self.context, param, f"at least {n_tokens}")

    def _check_ids(self, ids: list[int], param: str) -> list[int]:
        n_vocab = self.tokenizer.n_vocab
        if not ids:
            raise RequestError("a prompt must have at least one token", param=param)
        if max(ids) >= n_vocab:
            raise RequestError(f"token ids must be below {n_vocab}, got {max(ids)}", param=param)
        if len(ids) > self.context:
            raise context_exceeded(self.context, param, str(len(ids)))
        return ids

    async def _scored(
        self, asked: CompletionRequest, text: str | list[int], echo: str, ids: list[int]
    ) -> list[AnswerPiece]:
        has_prefix = isinstance(text, str) and asked.add_special_tokens
        n_prefix = len(self.tokenizer.prefix_ids) or int(not text)  # see prompt_ids
        score = partial(
            score_prompt,
            self.engine.model,
            self.tokenizer,
            ids,
            n_before=n_prefix if has_prefix else 0,
            n_characters=len(echo),
            n_likeliest=asked.logprobs or 0,
        )
        return await asyncio.wrap_future(self.engine.call(score))

    def _requests(
        self,
        asked: CompletionRequest | ChatRequest,
        prompts: list[list[int]],
        n_likeliest: int | None,
    ) -> list[Request]:
        is_chat = isinstance(asked, ChatRequest)
        if asked.stream_options and not asked.stream:
            raise RequestError("stream_options requires stream: true", param="stream_options")
        if asked.max_tokens == 0:
            if not is_chat and asked.echo:
                return []  # the prompts are only echoed
            raise RequestError("max_tokens: 0 requires echo: true", param="max_tokens")

        n_tokens = self.settings.max_tokens
        if asked.max_tokens != -1:
            n_tokens = min(n_tokens, asked.max_tokens)
        if is_chat:
            # The model must see the whole chat until the answer ends.
            n_tokens = min(n_tokens, room_for_answer(self.context, prompts[0]))
        own = asked.model_dump(include=SAMPLING, exclude_none=True)
        try:
            rules = Rules(**self.settings.defaults | own, max_new_tokens=n_tokens)
        except ValidationError as error:
            raise RequestError(first_error(error)) from None

        seed = self.settings.seed if asked.seed is None else asked.seed
        ignore = self.settings.ignore_end_of_text if asked.ignore_eos is None else asked.ignore_eos
        request = Request(
            prompt=[],
            rules=rules,
            seed=random.getrandbits(63) if seed is None else seed,
            stop=asked.stops or self.settings.stop,
            ignore_end_of_text=ignore,
            n_likeliest=n_likeliest,
            leading=chat_encoder_of(self.tokenizer).leading if is_chat else "",
        )
        return [
            replace(request, prompt=ids, stream=i * MOST_SAMPLES + number)
            for i, ids in enumerate(prompts)
            for number in range(asked.n)
        ]


async def in_thread(param: str, function: Callable[..., T], *arguments: Any) -> T:
    """Run a function in a thread. Raises RequestError for a mistake in this field of the request."""
    try:
        return await asyncio.to_thread(function, *arguments)
    except (ChatFormatError, UserError) as error:
        raise RequestError(f"{param}: {error!s:.{LONGEST_ERROR}}", param=param) from None


def context_exceeded(context: int, param: str, n_tokens: str) -> RequestError:
    """Return the error for a prompt that is too long. Programs look for these words of OpenAI."""
    return RequestError(
        f"This model's maximum context length is {context} tokens. However, your {param} resulted in {n_tokens} "
        "tokens.",
        param=param,
        code="context_length_exceeded",
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises UserError if the address is unknown, or if the port is in use."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
    # A name that is too long or not UTF-8 gives the other two errors.
    except (OSError, TypeError, UnicodeError) as error:
        code = getattr(error, "errno", None)
        remedy = "use a different --port" if code == errno.EADDRINUSE else "check --host and --port"
        reason = getattr(error, "strerror", error)
        raise UserError(f"cannot listen on {host:.80}:{port}: {reason}; {remedy}") from None
    # asyncio sends each chunk at once (TCP_NODELAY) only if the socket names its protocol. Otherwise a chunk waits up
    # to 40 ms for the client to acknowledge the previous chunk.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, listening.detach())


def content_security_policy(page: str) -> str:
    """Return a policy that lets a browser run only the script and the style of this page."""
    policy = "default-src 'none'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    for tag, content in re.findall(r"<(script|style)>(.*?)</", page, flags=re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        policy += f"{tag}-src 'sha256-{digest}'; "
    return policy + "frame-ancestors 'none'"


class QuietServer(uvicorn.Server):
    """A server that drops late clients, and that prints no tracebacks when it stops.

    After SIGINT or SIGTERM, open requests have FINISHING seconds to finish.
    """

    def __init__(self, app: Starlette) -> None:
        n_files = allow_open_files(BACKLOGS * MOST_CONNECTIONS)
        most = max(FEWEST_CONNECTIONS, n_files // BACKLOGS)
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            headers=[("X-Content-Type-Options", "nosniff")],
            limit_concurrency=most,
            backlog=most,
            timeout_graceful_shutdown=FINISHING,
        )
        super().__init__(config)

    async def on_tick(self, counter: int) -> bool:
        """Drop late clients. uvicorn calls this method ten times per second."""
        for connection in connections_of(self.server_state):
            connection.drop_if_late()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let open requests finish. uvicorn cancels those that take longer than FINISHING; they send an error."""
        await super().shutdown(sockets)
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=1)
        # A client that does not read its error must not keep the server.
        for connection in connections_of(self.server_state):
            connection.drop()
