"""Clients that never finish a request, or never read the answer, do not keep their connections."""

import contextlib
import socket
import threading

import httpx
import pytest

from gptmini.serving import connection
from gptmini.tokenizer import CharTokenizer
from serving.clients import PATIENCE, served
from sizes import TALKATIVE
from toys import wide_gpt

LETTERS = CharTokenizer("abc", end_of_text=True)
POST = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"


@pytest.fixture(scope="module")
def model():
    return wide_gpt(TALKATIVE | {"vocab_size": LETTERS.n_vocab}).eval()


def connected(url):
    return socket.create_connection(("127.0.0.1", httpx.URL(url).port), timeout=PATIENCE)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HTTP/1.1\r\n",
        POST + b"Content-Type: application/json\r\n\r\n{",
        POST + b"\r\n",  # refused before its body
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 10**6,  # does not read until all is sent
    ],
    ids=["nothing", "header", "body", "refused", "unread"],
)
def test_a_client_that_does_not_go_on_is_dropped(model, monkeypatch, capfd, sent):
    monkeypatch.setattr(connection, "PATIENCE", 0.2)
    was_dropped = contextlib.suppress(ConnectionError)
    with served(model, LETTERS) as (url, _), connected(url) as client, was_dropped:
        client.sendall(sent)
        while client.recv(1000):
            pass
    assert "Traceback" not in capfd.readouterr().err


def test_an_answer_may_take_longer(model, monkeypatch):
    monkeypatch.setattr(connection, "PATIENCE", 0.2)
    may_go_on = threading.Event()
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 2}
    with served(model, LETTERS) as (url, engine):
        engine.call(lambda: may_go_on.wait(PATIENCE))
        threading.Timer(1, may_go_on.set).start()
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200
