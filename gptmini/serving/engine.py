"""One decoder for the requests of many clients, in a thread of its own."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from gptmini.generation import Decoder, Rules, TextStream
from gptmini.model import GPT
from gptmini.tokenizer import Tokenizer
from gptmini.user_error import UserError

T = TypeVar("T")


@dataclass(eq=False, kw_only=True)
class Request:
    """Text that a client wants: a prompt and how to continue it."""

    prompt: Sequence[int]  # at least one id
    rules: Rules
    seed: int
    stream: int = 0  # see gptmini.generation.uniforms
    stop: Sequence[str] = ()
    ignore_end_of_text: bool = False
    log_probabilities: bool = False
    n_likeliest: int = 0
    leading: str = ""  # removed from the start of the answer


class AnswerPiece(NamedTuple):
    """The text that one token adds to an answer."""

    text: str  # text that is certain after this token; often empty, for example within a character
    token: int
    log_probability: float | None  # in nats; None if the request did not ask for it
    likeliest: list[tuple[int, float]]  # the most probable tokens and their log-probabilities
    finish: str | None  # reason of the end in the last piece: end_of_text, stop or length


class QueueFullError(Exception):
    """Too many requests wait already."""


@dataclass(eq=False)
class Answer:
    """A request that is being answered. deliver receives its pieces, or the error that ended it."""

    request: Request
    deliver: Callable[[AnswerPiece | UserError], None]
    text: TextStream
    sample: int | None = None  # number of the decoder's sample; None while it waits for the thread
    is_over: bool = field(default=False)  # ended or cancelled


class Engine:
    """Answers requests in one batch; requests never change each other's answers.

    A row of the batch keeps its keys and values after an answer, so the next turn of a chat encodes only what is new.
    """

    def __init__(
        self, model: GPT, tokenizer: Tokenizer, *, batch_size: int, max_waiting: int
    ) -> None:
        """Start the thread.

        Args:
            model: a GPT in eval mode, which nobody else may use until close.
            tokenizer: of the model.
            batch_size: maximum number of requests that are answered at the same time.
            max_waiting: maximum number of requests that wait for a row.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.max_open = batch_size + max_waiting
        self._decoder = Decoder(model, batch_size=batch_size, reuse=True)
        # Calls for the thread, in their order; None ends it.
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._answers: dict[
            int, Answer
        ] = {}  # by the number of their sample; only the thread uses it
        self._lock = threading.Lock()
        self._n_open = 0
        self._idle = threading.Event()  # set while no request is open
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def n_open(self) -> int:
        """Number of requests that wait or are being answered."""
        return self._n_open

    def submit(
        self, request: Request, deliver: Callable[[AnswerPiece | UserError], None]
    ) -> Answer:
        """Queue a request; the thread calls deliver for each piece of the answer, and must not be kept waiting by it.

        Raises QueueFullError if too many requests wait.
        """
        text = TextStream(
            self.tokenizer,
            request.stop,
            max_tokens=request.rules.max_new_tokens,
            ignore_end_of_text=request.ignore_end_of_text,
            leading=request.leading,
        )
        answer = Answer(request, deliver, text)
        with self._lock:
            if self._n_open >= self.max_open:
                raise QueueFullError
            self._n_open += 1
            self._idle.clear()
        self._calls.put(lambda: self._start(answer))
        return answer

    def cancel(self, answer: Answer) -> None:
        """End an answer early, for example because its client is gone; do nothing if it has ended."""
        self._calls.put(lambda: self._end(answer))

    def call(self, function: Callable[[], T]) -> "Future[T]":
        """Run a function in the thread, between two tokens, because only the thread may use the model."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except Exception as error:  # of any class: the caller gets it
                future.set_exception(error)

        self._calls.put(run)
        return future

    def close(self, seconds: float) -> bool:
        """Let open requests finish for so many seconds, and end the thread; return whether all have finished."""
        have_finished = self._idle.wait(seconds)
        self._calls.put(None)
        self._thread.join()
        return have_finished

    def _run(self) -> None:
        """Take calls and draw tokens until close."""
        while True:
            try:
                # Wait only if there is nothing to draw.
                call = self._calls.get(block=not self._answers)
            except queue.Empty:
                self._draw()
                continue
            if call is None:
                return
            call()

    def _start(self, answer: Answer) -> None:
        """Give the answer's request to the decoder."""
        request = answer.request
        answer.sample = self._decoder.add(
            request.prompt,
            request.rules,
            seed=request.seed,
            stream=request.stream,
            log_probabilities=request.log_probabilities,
            n_likeliest=request.n_likeliest,
        )
        self._answers[answer.sample] = answer

    def _draw(self) -> None:
        """Draw a token for each answer in the batch, and deliver the pieces."""
        try:
            drawn = self._decoder.draw()
        except UserError as error:
            # The logits of a request were not finite; the decoder cannot tell the others' apart.
            for answer in list(self._answers.values()):
                answer.deliver(error)
                self._end(answer)
            return

        for sample, token, log_probability, likeliest in drawn:
            answer = self._answers[sample]
            text, finish = answer.text.add(token)
            answer.deliver(AnswerPiece(text, token, log_probability, likeliest, finish))
            if finish is not None:
                self._end(answer)

    def _end(self, answer: Answer) -> None:
        """Free the answer's row."""
        if answer.is_over:
            return
        answer.is_over = True
        assert answer.sample is not None
        self._decoder.end(answer.sample)
        del self._answers[answer.sample]
        with self._lock:
            self._n_open -= 1
            if self._n_open == 0:
                self._idle.set()
