"""The HTTP server. It has a web page and an API that OpenAI's clients can use."""

import asyncio
import base64
import errno
import hashlib
import math
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any

import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request as HTTPRequest
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from gptmini.data.chat_formats import ChatFormatError, checked_messages
from gptmini.files import allow_open_files
from gptmini.generation import Rules, prompt_ids
from gptmini.generation.text import MOST_SAMPLES
from gptmini.serving.connection import Connection, connections_of
from gptmini.serving.conversation import room_for_answer
from gptmini.serving.engine import AnswerPiece, Engine, QueueFullError, Request, T
from gptmini.serving.guard import Guard, failed, has_key, json_of, not_found, refuse
from gptmini.serving.inspection import last_attention, score_prompt
from gptmini.serving.responses import ChoiceBuilder, Responder, finish_reason, queue_full
from gptmini.serving.schema import (
    COMPLETION_TOKENS,
    AttentionRequest,
    ChatRequest,
    CompletionRequest,
    RequestError,
    chat_logprobs,
    completion_logprobs,
    parse,
    token_text,
)
from gptmini.settings import first_error
from gptmini.tokenizer import Tokenizer
from gptmini.user_error import UserError

CONTEXT_EXCEEDED = "context_length_exceeded"  # OpenAI's code for a prompt that is too long
FINISHING = 10  # seconds that open answers have to finish when the server stops
LONGEST_ERROR = 300  # maximum number of characters of an error message
MOST_SHOWN = 64  # maximum number of tokens for which the web page shows attention
# Maximum number of connections, most of which are idle. A connection takes up to 0.2 MB of memory.
MOST_CONNECTIONS = 1000
# Open files per connection. asyncio accepts several backlogs of connections before the first is dropped.
BACKLOGS = 8
FEWEST_CONNECTIONS = 8  # a system that allows few open files may refuse some of them


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings that the operator of a server chooses."""

    model: str  # the id of the model
    # Sampling options for requests that do not set these options. The keys are names of fields of Rules.
    defaults: dict[str, Any]
    seed: int
    stop: Sequence[str] = ()
    ignore_end_of_text: bool = False
    max_tokens: int  # maximum number of tokens of an answer
    max_bytes: int = 2**20  # maximum number of bytes of a request body
    allowed_hosts: Sequence[str]
    allow_origin: str | None = None
    api_key: str | None = None


class Server:
    """Answers HTTP requests with one model."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        settings: ServerSettings,
    ) -> None:
        """Create a server.

        Args:
            engine: the engine that answers requests.
            tokenizer: the tokenizer of the model.
            settings: the settings that the operator chose.
        """
        self.engine = engine
        self.tokenizer = tokenizer
        self.settings = settings
        self.context = engine.context
        # A token stands for at most `longest` bytes, and a character has at least one byte.
        longest = max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.n_vocab))
        self.most_characters = self.context * longest
        self._page = files("gptmini.serving").joinpath("page.html").read_text(encoding="utf-8")
        self._page_policy = content_security_policy(self._page)

    def app(self) -> Starlette:
        """Return the ASGI application."""
        settings = self.settings
        middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=list(settings.allowed_hosts))]
        if settings.allow_origin is not None:
            origin = Middleware(
                CORSMiddleware,
                allow_origins=[settings.allow_origin],
                allow_methods=["GET", "POST"],
                allow_headers=["*"],  # OpenAI's client for browsers sends headers of its own
            )
            middleware.append(origin)
        middleware.append(Middleware(Guard, api_key=settings.api_key))

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
            RequestError: refuse,
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
        body = await json_of(request, self.settings.max_bytes)
        try:
            asked = AttentionRequest.model_validate(body)
            ids = await (
                asyncio.to_thread(self._text_ids, asked.text, "text")
                if asked.messages is None
                else asyncio.to_thread(self._chat_ids, asked.messages)
            )
        except ValidationError as error:
            raise RequestError(first_error(error)) from None
        except UserError as error:
            raise RequestError(f"{error!s:.{LONGEST_ERROR}}") from None
        weights = await self._by_engine(partial(last_attention, self.engine.model, ids, MOST_SHOWN))
        shown = [token_text(self.tokenizer, i) for i in ids[-MOST_SHOWN:]]
        content = {"tokens": shown, "n_tokens": len(ids), "weights": weights}
        return await asyncio.to_thread(JSONResponse, content)  # it may have megabytes

    async def _by_engine(self, function: Callable[[], T]) -> T:
        """Run a function in the thread of the engine. Raises RequestError if the queue is full."""
        try:
            return await asyncio.wrap_future(self.engine.call(function))
        except QueueFullError:
            raise queue_full() from None

    async def models(self, request: HTTPRequest) -> Response:
        """Return a list of all models. The list contains only one model."""
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def one_model(self, request: HTTPRequest) -> Response:
        """Return the description of the model."""
        self._check_model(request.path_params["name"])
        return JSONResponse(self._described())

    def _described(self) -> dict[str, Any]:
        return {"id": self.settings.model, "object": "model", "created": 0, "owned_by": "gptmini"}

    def _check_model(self, name: str) -> None:
        if name != self.settings.model:
            raise RequestError(
                f"unknown model {name:.80}; use {self.settings.model}",
                status=404,
                param="model",
                code="model_not_found",
            )

    async def completions(self, request: HTTPRequest) -> Response:
        """Return continuations of one or several prompts."""
        asked: CompletionRequest = parse(
            CompletionRequest, await json_of(request, self.settings.max_bytes)
        )
        self._check_model(asked.model)

        texts = self._texts(asked.prompt)
        n = self._check_number(asked, len(texts))
        prompts = await asyncio.to_thread(self._prompts, texts)
        max_tokens = asked.max_tokens or min(COMPLETION_TOKENS, self.settings.max_tokens)
        rules = self._rules(asked, max_tokens)
        requests = [
            self._request(asked, ids, rules, i * MOST_SAMPLES + number, asked.logprobs)
            for i, ids in enumerate(prompts)
            for number in range(n)
        ]
        # The texts and the tokens of the prompts that the answers repeat.
        echoes = [""] * len(prompts)
        scored: list[list[AnswerPiece]] = [[] for _ in prompts]
        if asked.echo:
            echoes = [
                text if isinstance(text, str) else self.tokenizer.decode(text) for text in texts
            ]
            if asked.logprobs is not None:
                pairs = zip(prompts, texts, strict=True)
                scored = [await self._scored(ids, text, asked.logprobs) for ids, text in pairs]

        def choice(index: int, pieces: list[AnswerPiece], *, is_first: bool) -> dict:
            echo = echoes[index // n]
            logprobs = None
            if asked.logprobs is not None:
                logprobs = completion_logprobs(pieces, self.tokenizer, offset=len(echo))
                if is_first:
                    of_prompt = completion_logprobs(scored[index // n], self.tokenizer, offset=0)
                    logprobs = {name: of_prompt[name] + logprobs[name] for name in logprobs}
            return {
                "index": index,
                "text": (echo if is_first else "") + "".join(piece.text for piece in pieces),
                "logprobs": logprobs,
                "finish_reason": finish_reason(pieces),
            }

        responder = self._responder(requests, sum(map(len, prompts)), choice)
        if asked.stream:
            return responder.stream("text_completion", include_usage=asked.wants_usage)
        return await responder.whole(request, "text_completion")

    async def chat_completions(self, request: HTTPRequest) -> Response:
        """Return answers to the last message of a chat."""
        asked: ChatRequest = parse(ChatRequest, await json_of(request, self.settings.max_bytes))
        self._check_model(asked.model)
        if asked.top_logprobs and not asked.logprobs:
            raise RequestError("top_logprobs requires logprobs: true", param="top_logprobs")
        try:
            ids = self._check_ids(await asyncio.to_thread(self._chat_ids, asked.messages))
        except UserError as error:
            raise RequestError(f"{error!s:.{LONGEST_ERROR}}", param="messages") from None

        # The answer must fit into the context together with the chat, because the model must see the whole chat.
        max_tokens = asked.max_completion_tokens or asked.max_tokens
        rules = self._rules(asked, max_tokens, room=room_for_answer(self.context, ids))
        n_likeliest = (asked.top_logprobs or 0) if asked.logprobs else None
        leading = self.tokenizer.chat_encoder.leading
        requests = [
            self._request(asked, ids, rules, number, n_likeliest, leading=leading)
            for number in range(self._check_number(asked, 1))
        ]

        def choice(index: int, pieces: list[AnswerPiece], *, is_first: bool) -> dict:
            message: dict[str, Any] = {"content": "".join(piece.text for piece in pieces)}
            if is_first:
                message = {"role": "assistant", "refusal": None, **message}
            return {
                "index": index,
                "delta" if asked.stream else "message": message,
                "logprobs": chat_logprobs(pieces, self.tokenizer) if asked.logprobs else None,
                "finish_reason": finish_reason(pieces),
            }

        responder = self._responder(requests, len(ids), choice)
        if asked.stream:
            return responder.stream("chat.completion.chunk", include_usage=asked.wants_usage)
        return await responder.whole(request, "chat.completion")

    def _responder(
        self, requests: list[Request], n_prompt: int, choice: ChoiceBuilder
    ) -> Responder:
        return Responder(
            engine=self.engine,
            model=self.settings.model,
            requests=requests,
            n_prompt=n_prompt,
            choice=choice,
        )

    def _chat_ids(self, messages: list[Any]) -> list[int]:
        """Return the ids of a chat up to its next answer.

        Raises UserError if a message has a wrong format, or if the chat template rejects the messages. Raises
        RequestError if the chat cannot fit into the context.
        """
        try:
            checked = checked_messages(messages)
        except ChatFormatError as error:
            raise UserError(str(error)) from None
        encoder = self.tokenizer.chat_encoder
        self._check_length(encoder.prompt_text(checked), "messages")
        return encoder.prompt(checked)

    def _text_ids(self, text: str, param: str) -> list[int]:
        """Return the ids of a text. Raises RequestError if the text cannot fit into the context."""
        self._check_length(text, param)
        return prompt_ids(self.tokenizer, text)

    def _check_length(self, text: str, param: str) -> None:
        """Raise RequestError if a text cannot fit into the context. This takes less time than encoding the text."""
        if len(text) > self.most_characters:
            raise RequestError(
                f"the prompt has {len(text):,} characters, but a context of {self.context:,} tokens holds at most "
                f"{self.most_characters:,}; shorten the prompt",
                param=param,
                code=CONTEXT_EXCEEDED,
            )

    def _texts(self, prompt: Any) -> list[str | list[int]]:
        """Return the prompts of a request. A prompt is a string or a list of ids."""
        is_ids = isinstance(prompt, list) and prompt and isinstance(prompt[0], int)
        texts = [prompt] if isinstance(prompt, str) or is_ids else prompt
        if not texts:
            raise RequestError("prompt must not be an empty list", param="prompt")
        return texts

    def _check_number(self, asked: Any, n_prompts: int) -> int:
        """Return the number of answers per prompt. Raises RequestError if the answers can never wait together."""
        n = asked.n or 1
        most = self.engine.max_open
        if n * n_prompts > most:
            raise RequestError(
                f"n times the number of prompts must be at most {most}, got {n * n_prompts}",
                param="n",
            )
        return n

    def _prompts(self, texts: list[str | list[int]]) -> list[list[int]]:
        """Return the ids of each prompt."""
        try:
            prompts = [
                self._text_ids(text, "prompt") if isinstance(text, str) else text for text in texts
            ]
        except UserError as error:
            raise RequestError(f"prompt: {error!s:.{LONGEST_ERROR}}", param="prompt") from None
        return [self._check_ids(ids) for ids in prompts]

    async def _scored(
        self, ids: list[int], text: str | list[int], n_likeliest: int
    ) -> list[AnswerPiece]:
        """Return the tokens of a prompt with their log-probabilities, without the ids before its text."""
        n_prefix = len(self.tokenizer.prefix_ids) or int(not text)  # see prompt_ids
        n_before = n_prefix if isinstance(text, str) else 0
        score = partial(
            score_prompt,
            self.engine.model,
            self.tokenizer,
            ids,
            n_before=n_before,
            n_likeliest=n_likeliest,
        )
        return await self._by_engine(score)

    def _check_ids(self, ids: list[int]) -> list[int]:
        """Return the ids of a prompt.

        Raises RequestError if there are no ids or too many ids, or if an id is not in the vocabulary.
        """
        n_vocab = self.tokenizer.n_vocab
        if not ids:
            raise RequestError("a prompt must have at least one token", param="prompt")
        if max(ids) >= n_vocab:
            raise RequestError(f"token ids must be below {n_vocab}, got {max(ids)}", param="prompt")
        if len(ids) > self.context:
            raise RequestError(
                f"the prompt has {len(ids)} tokens, but the context is {self.context}",
                param="prompt",
                code=CONTEXT_EXCEEDED,
            )
        return ids

    def _rules(self, asked: Any, max_tokens: int | None, *, room: float = math.inf) -> Rules:
        """Return the sampling rules of a request. An answer has at most `room` tokens."""
        limit = self.settings.max_tokens
        if max_tokens is not None and max_tokens > limit:
            is_new_name = getattr(asked, "max_completion_tokens", None) is not None
            name = "max_completion_tokens" if is_new_name else "max_tokens"
            raise RequestError(
                f"{name} must be at most {limit}, got {max_tokens}; the server's option --max-new-tokens raises this",
                param=name,
            )
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        own = {name: getattr(asked, name) for name in names if getattr(asked, name) is not None}
        try:
            rules = self.settings.defaults | own
            return Rules(**rules, max_new_tokens=min(max_tokens or limit, room))
        except ValidationError as error:
            raise RequestError(first_error(error)) from None

    def _request(
        self,
        asked: Any,
        ids: list[int],
        rules: Rules,
        stream: int,
        n_likeliest: int | None,
        *,
        leading: str = "",
    ) -> Request:
        """Return a request for the engine. n_likeliest is None if the client did not ask for log-probabilities."""
        ignore = self.settings.ignore_end_of_text if asked.ignore_eos is None else asked.ignore_eos
        return Request(
            prompt=ids,
            rules=rules,
            seed=self.settings.seed if asked.seed is None else asked.seed,
            stream=stream,
            stop=asked.stops or self.settings.stop,
            ignore_end_of_text=ignore,
            log_probabilities=n_likeliest is not None,
            n_likeliest=n_likeliest or 0,
            leading=leading,
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
    """Return a policy with which a browser runs only the script and the style of this page."""
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
