"""Requests of many clients are answered in one batch as if each were alone."""

import queue
import random
import threading
import time

import pytest
import torch

from gptmini.generation import Request, Rules, generate_stream, prompt_ids
from gptmini.serving import Engine
from gptmini.serving.schema import RequestError
from gptmini.tokenizer import CharTokenizer
from sizes import TALKATIVE
from toys import wide_gpt

LETTERS = CharTokenizer("abcdefghij", end_of_text=True)
PATIENCE = 60  # seconds


def make():
    """A model in float64 that draws every letter; end-of-text is its eleventh token."""
    return wide_gpt(TALKATIVE, dtype=torch.float64).eval()


@pytest.fixture
def engine():
    made = Engine(make(), LETTERS, batch_size=4, max_waiting=100)
    yield made
    made.close()


def ask(engine, prompt, *, seed=1, stop=(), ignore_end_of_text=False, **rules):
    """Submit a request; return its answer and the queue that receives its pieces."""
    pieces = queue.SimpleQueue()
    request = Request(
        prompt=prompt_ids(LETTERS, prompt),
        rules=Rules(**rules),
        seed=seed,
        stop=stop,
        ignore_end_of_text=ignore_end_of_text,
    )
    (answer,) = engine.submit([request], lambda index, piece: pieces.put(piece))
    return answer, pieces


def wait_until_idle(engine):
    """Wait until no request is open."""
    deadline = time.monotonic() + PATIENCE
    while engine.n_open:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def collect(pieces):
    """All pieces of an answer."""
    found = []
    while not found or found[-1].finish is None:
        found.append(pieces.get(timeout=PATIENCE))
    return (
        "".join(piece.text for piece in found),
        [piece.token for piece in found],
        found[-1].finish,
    )


def alone(prompt, **options):
    pieces = list(generate_stream(make(), LETTERS, prompt, **options))
    return (
        "".join(piece.text for piece in pieces),
        [piece.token for piece in pieces],
        pieces[-1].finish,
    )


def test_answers_of_many_clients_are_those_given_alone(engine):
    generator = random.Random(0)
    options = [
        {
            "prompt": "".join(generator.choices("abcdefghij", k=generator.randint(0, 20))),
            "seed": generator.randint(0, 9),
            "max_new_tokens": generator.randint(1, 40),
            "temperature": generator.choice([0.0, 0.7, 1.5]),
            "top_k": generator.choice([None, 3]),
            "repetition_penalty": generator.choice([1.0, 1.3]),
            "stop": generator.choice([(), ("ab",)]),
            "ignore_end_of_text": generator.random() < 0.5,
        }
        for _ in range(16)
    ]
    found = {}

    def client(numbers):
        for i in numbers:
            _, pieces = ask(engine, **options[i])
            found[i] = collect(pieces)

    clients = [threading.Thread(target=client, args=(range(first, 16, 8),)) for first in range(8)]
    for each in clients:
        each.start()
    for each in clients:
        each.join(PATIENCE)
    assert found == {i: alone(**options[i]) for i in range(16)}


def test_a_cancelled_request_frees_its_row_and_one_that_waits_is_never_started(engine):
    endless = {"ignore_end_of_text": True}
    running = [ask(engine, "a", **endless) for _ in range(4)]
    waiting, nothing = ask(engine, "b", **endless)
    for _, pieces in running:
        pieces.get(timeout=PATIENCE)
    engine.cancel(waiting)
    for answer, _ in running:
        engine.cancel(answer)

    _, pieces = ask(engine, "abc", max_new_tokens=3, ignore_end_of_text=True)
    assert collect(pieces) == alone(
        "abc", max_new_tokens=3, ignore_end_of_text=True, temperature=1.0
    )
    assert nothing.empty()
    wait_until_idle(engine)


def test_logits_that_are_not_finite_end_open_requests_with_the_error():
    model = make()
    next(model.parameters()).data.fill_(torch.nan)
    engine = Engine(model, LETTERS, batch_size=2, max_waiting=2)
    _, pieces = ask(engine, "abc")
    error = pieces.get(timeout=PATIENCE)
    assert isinstance(error, RequestError)
    assert "finite" in str(error)
    wait_until_idle(engine)
    engine.close()


def test_a_failure_of_the_model_ends_open_requests_and_later_requests_are_answered(
    monkeypatch, capfd
):
    model = make()
    engine = Engine(model, LETTERS, batch_size=2, max_waiting=2)
    options = {"max_new_tokens": 3, "ignore_end_of_text": True}

    def fail(*arguments, **options):
        raise torch.OutOfMemoryError("the memory is full")

    with monkeypatch.context() as patch:
        patch.setattr(type(model), "hidden", fail)
        error = ask(engine, "abc", **options)[1].get(timeout=PATIENCE)
    assert isinstance(error, RequestError)
    assert "OutOfMemoryError" in str(error)
    assert "the memory is full" in capfd.readouterr().err

    _, pieces = ask(engine, "abc", **options)
    assert collect(pieces) == alone("abc", **options, temperature=1.0)
    wait_until_idle(engine)

    # The decoder can fail before it has a request.
    with monkeypatch.context() as patch:
        patch.setattr(type(engine._session), "add", fail)
        error = ask(engine, "abc", **options)[1].get(timeout=PATIENCE)
    assert "OutOfMemoryError" in str(error)
    assert collect(ask(engine, "abc", **options)[1]) == alone("abc", **options, temperature=1.0)
    wait_until_idle(engine)
    engine.close()
