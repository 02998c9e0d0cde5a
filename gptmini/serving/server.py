"""The HTTP server. It has a web page and an API that OpenAI's clients can use."""

import asyncio
import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch
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
from gptmini.generation import Rules, prompt_ids
from gptmini.generation.text import MOST_SAMPLES
from gptmini.serving.engine import AnswerPiece, Engine, Request
from gptmini.serving.guard import Guard, failed, json_of, not_found, refuse
from gptmini.serving.responses import ChoiceBuilder, Responder, reason
from gptmini.serving.schema import (
    COMPLETION_TOKENS,
    AttentionRequest,
    ChatRequest,
    CompletionRequest,
    RequestError,
    TokenTexts,
    chat_logprobs,
    completion_logprobs,
    parse,
)
from gptmini.settings import first_error
from gptmini.tokenizer import Tokenizer
from gptmini.user_error import UserError

FINISHING = 10  # seconds that open answers have to finish when the server stops
LONGEST_ERROR = 300  # maximum number of characters of an error message
MOST_SHOWN = 64  # maximum number of tokens for which the web page shows attention


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
        self.context = engine.model.config.longest_input
        self.texts = TokenTexts(tokenizer)

    def app(self) -> Starlette:
        """Return the ASGI application."""
        settings = self.settings
        middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=list(settings.allowed_hosts))]
        if settings.allow_origin is not None:
            origin = Middleware(
                CORSMiddleware,
                allow_origins=[settings.allow_origin],
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type"],
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
        html = files("gptmini.serving").joinpath("page.html").read_text(encoding="utf-8")
        return HTMLResponse(html)

    async def health(self, request: HTTPRequest) -> Response:
        """Return the settings that the web page needs, and the number of requests that are open."""
        return JSONResponse(
            {
                "status": "ok",
                "model": self.settings.model,
                "open": self.engine.n_open,
                "chats": self.tokenizer.chat_template is not None,
                "needs_key": self.settings.api_key is not None,
                "defaults": self.settings.defaults | {"seed": self.settings.seed},
            }
        )

    async def attention(self, request: HTTPRequest) -> Response:
        """Return the attention weights (N, H, T, T) of the last tokens of a text or a chat. The web page shows them."""
        body = await json_of(request, self.settings.max_bytes)
        try:
            asked = AttentionRequest.model_validate(body)
            ids = (
                prompt_ids(self.tokenizer, asked.text)
                if asked.messages is None
                else self._chat_ids(asked.messages)
            )
        except ValidationError as error:
            raise RequestError(first_error(error)) from None
        except UserError as error:
            raise RequestError(f"{error!s:.{LONGEST_ERROR}}") from None
        ids = ids[-MOST_SHOWN:]
        model = self.engine.model

        @torch.inference_mode()
        def weights() -> list:
            tokens = torch.tensor([ids], device=model.embedding.weight.device)  # (1, T)
            layers = range(model.config.n_layers)
            found = model.attention_weights(tokens, layers)[:, 0]  # (N, H, T, T)
            return found.float().mul(1000).round().div(1000).tolist()

        found = await asyncio.wrap_future(self.engine.call(weights))
        return JSONResponse({"tokens": [self.texts.text(i) for i in ids], "weights": found})

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

        prompts = [self._check_ids(ids) for ids in self._prompts(asked.prompt)]
        rules = self._rules(asked, asked.max_tokens or COMPLETION_TOKENS)
        n = asked.n or 1
        requests = [
            self._request(asked, ids, rules, i * MOST_SAMPLES + number, asked.logprobs)
            for i, ids in enumerate(prompts)
            for number in range(n)
        ]
        starts = [""] * len(requests)
        if asked.echo:
            starts = [self.tokenizer.decode(ids) for ids in prompts for _ in range(n)]

        def choice(index: int, pieces: list[AnswerPiece], *, is_first: bool, offset: int) -> dict:
            start = starts[index] if is_first else ""
            logprobs = None
            if asked.logprobs is not None:
                logprobs = completion_logprobs(
                    pieces, self.texts, offset=offset + len(starts[index])
                )
            return {
                "index": index,
                "text": start + "".join(piece.text for piece in pieces),
                "logprobs": logprobs,
                "finish_reason": reason(pieces),
            }

        responder = self._responder(requests, sum(map(len, prompts)), choice)
        if asked.stream:
            return await responder.stream("text_completion", include_usage=asked.wants_usage)
        return await responder.whole(request, "text_completion")

    async def chat_completions(self, request: HTTPRequest) -> Response:
        """Return answers to the last message of a chat."""
        asked: ChatRequest = parse(ChatRequest, await json_of(request, self.settings.max_bytes))
        self._check_model(asked.model)
        if asked.top_logprobs and not asked.logprobs:
            raise RequestError("top_logprobs requires logprobs: true", param="top_logprobs")
        try:
            ids = self._check_ids(self._chat_ids(asked.messages))
        except UserError as error:
            raise RequestError(f"{error!s:.{LONGEST_ERROR}}", param="messages") from None

        max_tokens = asked.max_completion_tokens or asked.max_tokens
        rules = self._rules(asked, max_tokens)
        n_likeliest = (asked.top_logprobs or 0) if asked.logprobs else None
        leading = self.tokenizer.chat_encoder.leading
        requests = [
            self._request(asked, ids, rules, number, n_likeliest, leading=leading)
            for number in range(asked.n or 1)
        ]

        def choice(index: int, pieces: list[AnswerPiece], *, is_first: bool, offset: int) -> dict:
            message: dict[str, Any] = {"content": "".join(piece.text for piece in pieces)}
            if is_first:
                message = {"role": "assistant", "refusal": None, **message}
            return {
                "index": index,
                "delta" if asked.stream else "message": message,
                "logprobs": chat_logprobs(pieces, self.texts) if asked.logprobs else None,
                "finish_reason": reason(pieces),
            }

        responder = self._responder(requests, len(ids), choice)
        if asked.stream:
            return await responder.stream("chat.completion.chunk", include_usage=asked.wants_usage)
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

        Raises UserError if a message has a wrong format, or if the chat template rejects the messages.
        """
        try:
            return self.tokenizer.chat_encoder.prompt(checked_messages(messages))
        except ChatFormatError as error:
            raise UserError(str(error)) from None

    def _prompts(self, prompt: Any) -> list[list[int]]:
        """Return the ids of each prompt. A prompt in a request may be a string or a list of ids."""
        is_ids = isinstance(prompt, list) and prompt and isinstance(prompt[0], int)
        several = [prompt] if isinstance(prompt, str) or is_ids else prompt
        if not several:
            raise RequestError("prompt must not be an empty list", param="prompt")
        try:
            return [
                prompt_ids(self.tokenizer, one) if isinstance(one, str) else list(one)
                for one in several
            ]
        except UserError as error:
            raise RequestError(f"prompt: {error!s:.{LONGEST_ERROR}}", param="prompt") from None

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
                f"the prompt has {len(ids)} tokens, but the model's context is {self.context}",
                param="prompt",
                code="context_length_exceeded",
            )
        return ids

    def _rules(self, asked: Any, max_tokens: int | None) -> Rules:
        """Return the sampling rules of a request."""
        limit = self.settings.max_tokens
        if max_tokens is not None and max_tokens > limit:
            raise RequestError(
                f"max_tokens must be at most {limit}, got {max_tokens}", param="max_tokens"
            )
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        own = {name: getattr(asked, name) for name in names if getattr(asked, name) is not None}
        try:
            rules = self.settings.defaults | own
            return Rules(**{**rules, "max_new_tokens": max_tokens or limit})
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
        if not all(asked.stops):
            raise RequestError("stop must not be an empty string", param="stop")
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
    except OSError as error:
        remedy = (
            "use a different --port"
            if error.errno == errno.EADDRINUSE
            else "check --host and --port"
        )
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}; {remedy}") from None
    # asyncio sends each chunk at once (TCP_NODELAY) only if the socket names its protocol. Otherwise a chunk waits up
    # to 40 ms for the client to acknowledge the previous chunk.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, listening.detach())


def run(app: Starlette, listening: socket.socket) -> None:
    """Run the server until SIGINT or SIGTERM. After the signal, open answers have FINISHING seconds to finish."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=FINISHING,
    )
    uvicorn.Server(config).run(sockets=[listening])
