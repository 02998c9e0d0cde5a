"""The responses to requests for text: one JSON object, or a stream of server-sent events."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gptmini.generation import Request, TextPiece
from gptmini.serving.engine import Engine
from gptmini.serving.guard import STOPPING
from gptmini.serving.schema import ChatRequest, CompletionRequest, RequestError
from gptmini.serving.served_model import ServedModel

# Maps the reason why an answer ended to OpenAI's name for this reason. None: it has not ended.
REASONS = {None: None, "end_of_text": "stop", "stop": "stop", "length": "length"}


@dataclass(frozen=True, kw_only=True)
class Responder:
    """Answers one HTTP request by its requests to the engine."""

    model: ServedModel
    object_name: str  # OpenAI's name for the response or its chunks
    body: CompletionRequest | ChatRequest
    requests: Sequence[Request]  # one for each choice, or none if nothing is generated
    prompts: Sequence[Sequence[int]]
    # Makes the body of a choice: choice(index, pieces, is_first), where pieces are those of the answer, or of a chunk.
    # is_first: whether the choice is the entire answer or the first chunk.
    choice: Callable[[int, list[TextPiece], bool], dict[str, Any]]

    async def respond(self, request: HTTPRequest) -> Response:
        """Return all answers in one JSON object, or a stream of chunks."""
        answers = Answers(self.model.engine, self.requests)
        if self.body.stream:
            return AnswerStream(answers, self._chunks(answers))

        pieces = self._no_pieces()
        watching = asyncio.ensure_future(answers.end_on_disconnect(request))
        try:
            async for index, piece in answers.pieces():
                pieces[index].append(piece)
        finally:
            watching.cancel()
            answers.cancel()
        choices = [
            # An answer without pieces only repeats its prompt.
            self._choice(index, each, True, each[-1].finish if each else "length")
            for index, each in enumerate(pieces)
        ]
        n_drawn = sum(map(len, pieces))
        return JSONResponse(self._head() | {"choices": choices, "usage": self._usage(n_drawn)})

    async def _chunks(self, answers: "Answers") -> AsyncIterator[str]:
        """Yield the events of a stream. The first and the last chunk of each answer have no generated text."""

        def event(index: int, finish: str | None = None, *, is_first: bool = False) -> str:
            choice = self._choice(index, held[index], is_first, finish)
            held[index] = []
            return _event(head | {"choices": [choice]})

        has_usage = self.body.stream_options.get("include_usage")
        head = self._head() | ({"usage": None} if has_usage else {})
        n_drawn = 0
        # A piece without text is sent together with the next piece that has text, or with the end.
        held = self._no_pieces()
        try:
            for index in range(len(held)):
                yield event(index, None if self.requests else "length", is_first=True)
            async for index, piece in answers.pieces():
                n_drawn += 1
                held[index].append(piece)
                if piece.text:
                    yield event(index)
                if piece.finish is not None:
                    yield event(index, piece.finish)
            if has_usage:
                yield _event(head | {"choices": [], "usage": self._usage(n_drawn)})
            yield "data: [DONE]\n\n"
        except RequestError as error:
            yield _event(error.body)

    def _choice(
        self, index: int, pieces: list[TextPiece], is_first: bool, finish: str | None
    ) -> dict[str, Any]:
        choice = self.choice(index, pieces, is_first)
        return {"index": index, **choice, "finish_reason": REASONS[finish]}

    def _no_pieces(self) -> list[list[TextPiece]]:
        return [[] for _ in range(self.body.n * len(self.prompts))]

    def _head(self) -> dict[str, Any]:
        prefix = "cmpl" if self.object_name == "text_completion" else "chatcmpl"
        return {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": self.object_name,
            "created": int(time.time()),
            "model": self.model.settings.model,
        }

    def _usage(self, n_drawn: int) -> dict[str, int]:
        n_prompt = sum(map(len, self.prompts))
        return {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_drawn,
            "total_tokens": n_prompt + n_drawn,
        }


class AnswerStream(StreamingResponse):
    """A stream of chunks. Its answers are cancelled if the client disconnects, even before the first chunk."""

    def __init__(self, answers: "Answers", chunks: AsyncIterator[str]) -> None:
        # nginx would collect 4 kB of an answer before it sends them.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(chunks, media_type="text/event-stream", headers=headers)
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the chunks."""
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:  # the server stops
            event = _event(STOPPING.body).encode()
            await send({"type": "http.response.body", "body": event})
        finally:
            self._answers.cancel()


class Answers:
    """The answers to the requests of one client. The thread of the engine delivers the pieces of the answers."""

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        """Submit the requests to the engine. Raises RequestError if too many requests are waiting."""
        self._engine = engine
        self._pieces: asyncio.Queue[tuple[int, TextPiece | RequestError]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._answers = engine.submit(requests, self._deliver)

    def _deliver(self, index: int, piece: TextPiece | RequestError) -> None:
        # The event loop is closed if the server has stopped before this answer has ended.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, (index, piece))

    async def pieces(self) -> AsyncIterator[tuple[int, TextPiece]]:
        """Yield the number of an answer and the next piece of this answer, until all answers have ended.

        Raises RequestError if the engine fails, or if the client disconnects before that.
        """
        n_open = len(self._answers)
        while n_open:
            index, piece = await self._pieces.get()
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


def _event(body: dict[str, Any]) -> str:
    # The JSON is ASCII, because some clients also end a line at U+2028.
    return f"data: {json.dumps(body)}\n\n"
