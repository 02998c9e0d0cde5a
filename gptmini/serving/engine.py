"""One session that answers the requests of many clients. It runs in its own thread."""

import queue
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from gptmini.generation import DIVERGED, Request, Session, TextPiece
from gptmini.model import GPT
from gptmini.serving.schema import RequestError
from gptmini.tokenizer import Tokenizer

T = TypeVar("T")
RETRY_AFTER = 1  # if the queue is full, a client should try again after this number of seconds


@dataclass(eq=False)
class Answer:
    """A request that is being answered. `deliver` receives the pieces of the answer, or the error that ended it."""

    request: Request
    deliver: Callable[[TextPiece | RequestError], None]
    sample: int = -1  # number of the sample; -1 before the session has the request


class Engine:
    """Answers requests in one batch.

    In float32 and float64, a request never changes the text of another answer. In bfloat16, the rounding of a sum
    depends on the size of the batch. docs/chat.md says how many texts differed.

    A row of the batch keeps its keys and values after an answer. Therefore, the next turn of a chat encodes only the
    tokens that are new.
    """

    def __init__(
        self,
        model: GPT,
        tokenizer: Tokenizer,
        *,
        batch_size: int,
        max_waiting: int,
        context: int | None = None,
    ) -> None:
        """Start the thread.

        Args:
            model: a GPT in eval mode. Other threads must not use the model until `close` is called.
            tokenizer: the tokenizer of the model.
            batch_size: maximum number of requests that are answered at the same time.
            max_waiting: maximum number of requests that wait for a row.
            context: maximum number of tokens that the model sees, at most its own context. None: its own context. The
                cache takes memory for this number times batch_size.
        """
        self.model = model
        self.max_open = batch_size + max_waiting
        self._session = Session(
            model, tokenizer, batch_size=batch_size, capacity=context, reuse=True
        )
        self.context = self._session.capacity
        # The functions that the thread calls, in order. None ends the thread.
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Maps the number of a sample to its answer. Only the thread uses this dict.
        self._answers: dict[int, Answer] = {}
        self._lock = threading.Lock()
        self.n_open = 0  # number of requests and calls that are waiting or are being answered
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(
        self,
        requests: Sequence[Request],
        deliver: Callable[[int, TextPiece | RequestError], None],
    ) -> list[Answer]:
        """Queue the requests of one client: all of them, or none of them if there is not enough room.

        For each piece of an answer, the thread calls `deliver` with the index of the request and the piece. `deliver`
        must return immediately, because the thread cannot work before that. Raises RequestError if too many requests
        are waiting.
        """
        answers = [
            Answer(request, partial(deliver, index)) for index, request in enumerate(requests)
        ]
        self._count(len(answers))
        for answer in answers:
            self._calls.put(partial(self._start, answer))
        return answers

    def cancel(self, answer: Answer) -> None:
        """End an answer early, for example because the client has disconnected. Do nothing if the answer has ended."""
        self._calls.put(partial(self._end, answer))

    def call(self, function: Callable[[], T]) -> "Future[T]":
        """Run a function in the thread, between two tokens. Only the thread may use the model.

        Raises RequestError if too many requests are waiting.
        """
        future: Future[T] = Future()
        self._count(1)

        def run() -> None:
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(function())
            except Exception as error:  # the error may have any class; the caller receives it
                future.set_exception(error)
            finally:
                self._count(-1)

        self._calls.put(run)
        return future

    def close(self) -> None:
        """End the thread. Open requests get no more pieces."""
        self._calls.put(None)
        self._thread.join()

    def _count(self, n: int) -> None:
        with self._lock:
            if self.n_open + n > self.max_open:
                raise RequestError(
                    "too many requests are waiting; try again later",
                    status=503,
                    kind="server_error",
                    code="overloaded",
                    headers={"Retry-After": str(RETRY_AFTER)},
                )
            self.n_open += n

    def _run(self) -> None:
        while True:
            try:
                # Wait for a call only if there is no answer to continue.
                call = self._calls.get(block=not self._answers)
            except queue.Empty:
                self._step()
                continue
            if call is None:
                return
            call()

    def _start(self, answer: Answer) -> None:
        try:
            answer.sample = self._session.add(answer.request)
            self._answers[answer.sample] = answer
        except Exception as error:
            self._fail([answer], error)
            self._count(-1)

    def _step(self) -> None:
        try:
            pieces = self._session.step()
        except Exception as error:
            # All answers end, because the cache may be incomplete, for example if the memory of the GPU is full.
            self._fail(list(self._answers.values()), error)
            self._session.reset()
            return

        for piece in pieces:
            answer = self._answers[piece.sample]
            # Free the row before the last piece is delivered, so that the client's next request finds it free.
            if piece.finish is not None:
                self._end(answer)
            answer.deliver(failure(DIVERGED) if piece.finish == "not_finite" else piece)

    def _fail(self, answers: Sequence[Answer], error: Exception) -> None:
        traceback.print_exception(error)
        for answer in answers:
            answer.deliver(failure(f"the model failed: {type(error).__name__}"))
            self._end(answer)

    def _end(self, answer: Answer) -> None:
        if self._answers.pop(answer.sample, None) is not None:
            self._session.end(answer.sample)
            self._count(-1)


def failure(message: str) -> RequestError:
    """Return the error for a request that the server could not answer."""
    return RequestError(message, status=500, kind="server_error")
