"""The HTTP server. It has a web page and an API that OpenAI's clients can use."""

import asyncio
import errno
import socket
from dataclasses import asdict
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HTTPRequest
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from gptmini.page import server_page
from gptmini.serving.chats import answer_chat
from gptmini.serving.completions import complete
from gptmini.serving.connection import Connection, connections_of
from gptmini.serving.engine import Engine
from gptmini.serving.guard import Guard, failed, has_key, json_of, not_found
from gptmini.serving.inspection import last_attention
from gptmini.serving.schema import AttentionRequest, parse, token_text
from gptmini.serving.served_model import ServedModel, ServerSettings, in_thread
from gptmini.settings import SAMPLE_TOKENS
from gptmini.system.errors import UserError
from gptmini.system.files import allow_open_files
from gptmini.tokenizer import Tokenizer, missing_template

FINISHING = 10  # seconds that open answers have to finish when the server stops
MOST_SHOWN = 64  # maximum number of tokens for which the web page shows attention
# Maximum number of connections, most of which are idle. A connection takes up to 0.2 MB of memory.
MOST_CONNECTIONS = 1000
# Open files per connection. asyncio accepts several backlogs of connections before the first is dropped.
BACKLOGS = 8
FEWEST_CONNECTIONS = 8  # even if the system allows too few open files for them


def application(engine: Engine, tokenizer: Tokenizer, settings: ServerSettings) -> Starlette:
    """Return the ASGI application that answers HTTP requests with one model."""
    model = ServedModel(engine, tokenizer, settings)
    middleware = [
        Middleware(
            CORSMiddleware,
            allow_origins=list(settings.allow_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # OpenAI's client for browsers sends headers of its own
        ),
        Middleware(Guard, api_key=settings.api_key, hosts=settings.allowed_hosts),
    ]

    page, policy = server_page()
    routes = [
        Route("/", partial(show_page, page, {"Content-Security-Policy": policy})),
        Route("/health", partial(show_health, model)),
        Route("/attention", partial(show_attention, model), methods=["POST"]),
        Route("/v1/models", partial(show_model, model)),
        Route("/v1/models/{name:path}", partial(show_model, model)),
        Route("/v1/completions", partial(complete, model), methods=["POST"]),
        Route("/v1/chat/completions", partial(answer_chat, model), methods=["POST"]),
    ]

    handlers: dict[Any, Any] = {404: not_found, 405: not_found, 500: failed}
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)


async def show_page(page: str, headers: dict[str, str], request: HTTPRequest) -> Response:
    """Return the web page."""
    return HTMLResponse(page, headers=headers)


async def show_health(model: ServedModel, request: HTTPRequest) -> Response:
    """Return the settings that the web page needs, and the number of requests that are open.

    A client without the key learns only that the server is there.
    """
    settings = model.settings
    health = {"status": "ok", "needs_key": settings.api_key is not None}
    if has_key(request, settings.api_key):
        chats = model.tokenizer.chat_template is not None
        rules = settings.request.rules
        length = min(SAMPLE_TOKENS, rules.max_new_tokens or SAMPLE_TOKENS)
        health |= {
            "model": settings.model,
            "open": model.engine.n_open,
            "chats": chats,
            "reason": None if chats else missing_template(settings.model),
            "ends": [model.tokenizer.decode([i]) for i in model.tokenizer.ends],
            "defaults": asdict(rules) | {"seed": settings.seed, "max_tokens": length},
        }
    return JSONResponse(health)


async def show_attention(model: ServedModel, request: HTTPRequest) -> Response:
    """Return the attention between the last tokens of a text or a chat. The web page shows it."""
    body = parse(AttentionRequest, await json_of(request, model.settings.max_bytes))
    if body.messages is None:
        # The page shows the last tokens of a text of any length.
        text = body.text[-model.context * model.longest_token :]
        ids = await in_thread("text", model.text_ids, text)
    else:
        read = partial(model.chat_ids, is_continued=True)
        ids = await in_thread("messages", read, body.messages, {})
    look = partial(last_attention, model.engine.model, ids, MOST_SHOWN)
    weights = await asyncio.wrap_future(model.engine.call(look))
    tokens = [token_text(model.tokenizer, i) for i in ids[-MOST_SHOWN:]]
    content = {"tokens": tokens, "n_tokens": len(ids), "weights": weights}
    return await asyncio.to_thread(JSONResponse, content)  # it may have megabytes


async def show_model(model: ServedModel, request: HTTPRequest) -> Response:
    """Return the description of the model that the path names, or a list of the only model."""
    name = request.path_params.get("name")
    model.check_name(name)
    described = {
        "id": model.settings.model,
        "object": "model",
        "created": 0,
        "owned_by": "gptmini",
    }
    return JSONResponse({"object": "list", "data": [described]} if name is None else described)


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
