"""The checks of each HTTP request before it reaches an endpoint, and errors in OpenAI's format."""

import asyncio
import hmac
import logging
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from pydantic_core import from_json
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gptmini.serving.schema import RequestError

# The host in the URL of this computer, or an IP address. No name of a different site leads to an address.
ADDRESS = r"localhost|[\d.]+|\[[\da-f:.]+\]"
# The error for a request that is still open when the server stops.
STOPPING = RequestError("the server is stopping", status=503, kind="server_error")


class Guard:
    """Rejects requests to unknown hosts or without the API key, and request bodies with a content type other than JSON.

    The name of a different site can lead to this server, and its web page could then read the answers. Browsers allow
    such a page to send a form or plain text without permission, but not JSON.
    """

    def __init__(self, app: ASGIApp, *, api_key: str | None, hosts: Sequence[str]) -> None:
        self.app = app
        self.api_key = api_key
        self.hosts = [host.lower() for host in hosts]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request with an error, or pass the request to the application."""
        try:
            self._check(HTTPRequest(scope))
            await self.app(scope, receive, send)
        except RequestError as error:
            await error_response(error)(scope, receive, send)
        except asyncio.CancelledError:  # uvicorn ends open requests when the server stops
            await error_response(STOPPING)(scope, receive, send)

    def _check(self, request: HTTPRequest) -> None:
        host = re.sub(r":\d*$", "", request.headers.get("host", "")).lower()
        is_known = any(fnmatchcase(host, pattern) for pattern in self.hosts)
        if not is_known and not re.fullmatch(ADDRESS, host):
            log_host(host)
            raise RequestError(
                f"unknown host {host:.80}; use an address of the server, or start it with --allow-host {host:.80}"
            )
        # The URL in request.url also contains the header Host, which a client can choose freely.
        is_public = request.scope["path"] in ("/", "/health")
        if not is_public and not has_key(request, self.api_key):
            raise RequestError(
                "the API key is missing or wrong; send the header Authorization: Bearer KEY",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if request.method != "POST":
            return
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise RequestError("the header Content-Type must be application/json", status=415)


def has_key(request: HTTPRequest, api_key: str | None) -> bool:
    """Return whether a request may use the API: it has the key, or the server needs none."""
    given = re.sub("^bearer +", "", request.headers.get("authorization", ""), flags=re.IGNORECASE)
    return api_key is None or hmac.compare_digest(given.encode(), api_key.encode())


@lru_cache(maxsize=100)
def log_host(host: str) -> None:
    """Log that requests to a host are refused, once for each host."""
    logging.getLogger("uvicorn.error").warning("refused the host %.80r; see --allow-host", host)


async def json_of(request: HTTPRequest, limit: int) -> Any:
    """Return the parsed JSON of a request body.

    Raises RequestError if the body has more than `limit` bytes, if it is not JSON, if it has more than 200 levels, or
    if the client disconnects.
    """
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise RequestError(f"the request body must have at most {limit} bytes", status=413)
    except ClientDisconnect:
        raise RequestError("the client has disconnected", status=499) from None
    try:
        return from_json(bytes(body))
    except ValueError as error:
        raise RequestError(f"the request body must be valid JSON: {error}") from None


def error_response(error: RequestError) -> JSONResponse:
    """Return the error as JSON in OpenAI's format."""
    return JSONResponse(error.body, status_code=error.status, headers=error.headers)


async def not_found(request: HTTPRequest, error: Exception) -> Response:
    """Return the response to an unknown path, or to an unknown method of a path."""
    status = getattr(error, "status_code", 404)
    place = f"{request.method} {request.scope['path']:.80}"
    message = f"unknown endpoint {place}; the base URL of OpenAI's clients is {request.base_url}v1"
    return error_response(RequestError(message, status=status, code="not_found"))


async def failed(request: HTTPRequest, error: Exception) -> Response:
    """Return the response if an endpoint failed. Starlette logs the traceback."""
    return error_response(RequestError("internal error", status=500, kind="server_error"))
