"""The responses to requests for text: one JSON object, or a stream of server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gptmini.serving.engine import AnswerPiece, Engine, QueueFullError, Request
from gptmini.serving.guard import stopping
from gptmini.serving.schema import REASONS, RequestError, ResponseKind, response_head, usage
from gptmini.user_error import UserError

RETRY_AFTER = 1  # if the queue is full, a client should try again after this number of seconds


class ChoiceBuilder(Protocol):
    """Makes one of the choices in a response from pieces of an answer."""

    def __call__(self, index: int, pieces: list[AnswerPiece], *, is_first: bool) -> dict[str, Any]:
        """Return the choice.

        Args:
            index: number of the answer.
            pieces: all pieces of the answer, or those for one chunk of a stream.
            is_first: whether the pieces start the answer.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Responder:
    """Answers one HTTP request by its requests to the engine."""

    engine: Engine
    model: str  # id of the model
    requests: Sequence[Request]
    n_prompt: int  # number of tokens in the prompts
    choice: ChoiceBuilder

    async def whole(self, request: HTTPRequest, kind: ResponseKind) -> Response:
        """Return all answers in one JSON object. Cancel them if the client disconnects."""
        answers = Answers(self.engine, self.requests)
        pieces: list[list[AnswerPiece]] = [[] for _ in self.requests]
        watching = asyncio.ensure_future(answers.end_on_disconnect(request))
        try:
            async for index, piece in answers.pieces():
                pieces[index].append(piece)
        finally:
            watching.cancel()
            answers.cancel()
        choices = [self.choice(index, each, is_first=True) for index, each in enumerate(pieces)]
        body = {"choices": choices, "usage": usage(self.n_prompt, sum(map(len, pieces)))}
        return JSONResponse(response_head(kind, self.model) | body)

    def stream(self, kind: ResponseKind, *, include_usage: bool) -> Response:
        """Return a stream of chunks. Raises RequestError before the stream starts if the queue is full."""
        answers = Answers(self.engine, self.requests)
        chunks = self._chunks(answers, response_head(kind, self.model), include_usage)
        return AnswerStream(answers, chunks)

    async def _chunks(
        self, answers: "Answers", start: dict[str, Any], include_usage: bool
    ) -> AsyncIterator[str]:
        """Yield the events of a stream."""
        if include_usage:
            start = start | {"usage": None}
        n_drawn = 0
        is_first = [True] * len(self.requests)
        # A piece without text is sent together with the next piece that has text. Therefore, no chunk is empty.
        held: list[list[AnswerPiece]] = [[] for _ in self.requests]
        try:
            async for index, piece in answers.pieces():
                n_drawn += 1
                held[index].append(piece)
                if not piece.text and piece.finish is None:
                    continue
                made = self.choice(index, held[index], is_first=is_first[index])
                is_first[index] = False
                held[index] = []
                yield _event(start | {"choices": [made]})
            if include_usage:
                yield _event(start | {"choices": [], "usage": usage(self.n_prompt, n_drawn)})
            yield "data: [DONE]\n\n"
        except RequestError as error:
            yield _event(error.body)


class AnswerStream(StreamingResponse):
    """A stream of chunks. Its answers are cancelled if the client disconnects, even before the first chunk."""

    def __init__(self, answers: "Answers", chunks: AsyncIterator[str]) -> None:
        super().__init__(chunks, media_type="text/event-stream")
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the chunks."""
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:  # the server stops
            event = _event(stopping().body).encode()
            await send({"type": "http.response.body", "body": event})
        finally:
            self._answers.cancel()


class Answers:
    """The answers to the requests of one client. The thread of the engine delivers the pieces of the answers."""

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        """Submit the requests to the engine. Raises RequestError if the queue is full."""
        self._engine = engine
        self._pieces: asyncio.Queue[tuple[int, AnswerPiece | UserError | RequestError]] = (
            asyncio.Queue()
        )
        self._loop = asyncio.get_running_loop()
        try:
            self._answers = engine.submit(requests, self._deliver)
        except QueueFullError:
            raise queue_full() from None

    def _deliver(self, index: int, piece: AnswerPiece | UserError) -> None:
        # The event loop is closed if the server has stopped before this answer has ended.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, (index, piece))

    async def pieces(self) -> AsyncIterator[tuple[int, AnswerPiece]]:
        """Yield the number of an answer and the next piece of this answer, until all answers have ended.

        Raises RequestError if the engine fails, or if the client disconnects before that.
        """
        n_open = len(self._answers)
        while n_open:
            index, piece = await self._pieces.get()
            if isinstance(piece, UserError):
                raise RequestError(str(piece), status=500, kind="server_error")
            if isinstance(piece, RequestError):
                raise piece
            yield index, piece
            n_open -= piece.finish is not None

    async def end_on_disconnect(self, request: HTTPRequest) -> None:
        """End `pieces` when the client disconnects."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        await self._pieces.put((0, RequestError("the client has disconnected", status=499)))

    def cancel(self) -> None:
        """Cancel all answers that have not ended."""
        for answer in self._answers:
            self._engine.cancel(answer)


def queue_full() -> RequestError:
    """Return the error for a request that cannot wait, because too many requests are waiting."""
    return RequestError(
        "too many requests are waiting; try again later",
        status=503,
        kind="server_error",
        code="overloaded",
        headers={"Retry-After": str(RETRY_AFTER)},
    )


def finish_reason(pieces: Sequence[AnswerPiece]) -> str | None:
    """Return OpenAI's name for the reason why an answer ended, or None if it has not ended."""
    finish = pieces[-1].finish if pieces else None
    return None if finish is None else REASONS[finish]


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
