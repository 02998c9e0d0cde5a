"""The checks of each HTTP request before it reaches an endpoint, and errors in OpenAI's format."""

import asyncio
import hmac
import json
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gptmini.serving.schema import RequestError

MOST_LEVELS = 100  # maximum depth of lists and objects in a request body


class Guard:
    """Rejects requests that do not have the API key, and request bodies with a content type other than JSON.

    Browsers allow a web page of a different site to send a form or plain text without permission, but not JSON.
    """

    def __init__(self, app: ASGIApp, *, api_key: str | None) -> None:
        self.app = app
        self.api_key = api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request with an error, or pass the request to the application."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._check(HTTPRequest(scope))
            await self.app(scope, receive, send)
        except RequestError as error:
            await error_response(error)(scope, receive, send)
        except asyncio.CancelledError:  # uvicorn ends open requests when the server stops
            await error_response(stopping())(scope, receive, send)

    def _check(self, request: HTTPRequest) -> None:
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
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    return api_key is None or hmac.compare_digest(given.encode(), api_key.encode())


async def json_of(request: HTTPRequest, limit: int) -> Any:
    """Return the parsed JSON of a request body.

    Raises RequestError if the body has more than `limit` bytes, if it is not JSON, if it has more than MOST_LEVELS
    levels, or if the client disconnects.
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
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError("the request body must be valid JSON") from None

    level = [value]
    for _ in range(MOST_LEVELS + 1):
        level = [child for one in level for child in _children(one)]
    if level:
        raise RequestError(f"the request body must be nested at most {MOST_LEVELS} levels deep")
    return value


def _children(value: Any) -> list[Any]:
    """Return the values in a list or in an object."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def stopping() -> RequestError:
    """Return the error for a request that is still open when the server stops."""
    return RequestError("the server is stopping", status=503, kind="server_error")


def error_response(error: RequestError) -> JSONResponse:
    """Return the error as JSON in OpenAI's format."""
    return JSONResponse(error.body, status_code=error.status, headers=error.headers)


async def refuse(request: HTTPRequest, error: Exception) -> Response:
    """Return the response to a request that an endpoint refused."""
    assert isinstance(error, RequestError)
    return error_response(error)


async def not_found(request: HTTPRequest, error: Exception) -> Response:
    """Return the response to an unknown path, or to an unknown method of a path."""
    status = getattr(error, "status_code", 404)
    place = f"{request.method} {request.scope['path']:.80}"
    return error_response(
        RequestError(f"unknown endpoint {place}", status=status, code="not_found")
    )


async def failed(request: HTTPRequest, error: Exception) -> Response:
    """Return the response if an endpoint failed. Starlette logs the traceback."""
    return error_response(RequestError("internal error", status=500, kind="server_error"))
