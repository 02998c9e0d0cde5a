"""gptmini serve as a program: its address, its signals, and the mistakes that prevent its start."""

import contextlib
import json
import re
import resource
import signal
import socket
import threading
import time

import httpx
import openai
import pytest

import programs
from gptmini.commands.serve import own_names
from gptmini.generation import generate
from gptmini.loading import load
from gptmini.serving import server as server_module
from gptmini.system.files import allow_open_files
from gptmini.tokenizer import byte, with_chat_template
from run_folders import save_model

PATIENCE = 60  # seconds


CHAT = with_chat_template(byte([]))


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("serve") / "chat.ckpt", CHAT, context_length=96)


@pytest.mark.slow
def test_sigterm_lets_running_answers_finish(chatty):
    options = ("--port", "0", "--max-new-tokens", "100000")
    with programs.start("serve", str(chatty), *options, text=True) as server:
        address = re.search(r"http://[^ ]+", server.stdout.readline()).group()
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        model, tokenizer = load(chatty)
        rules = {"temperature": 0.8, "seed": 3, "max_new_tokens": 400}
        (expected,) = generate(model, tokenizer, "Hi", ignore_end_of_text=True, **rules)

        def ask(n_tokens):
            return client.completions.create(
                model="chat.ckpt",
                prompt="Hi",
                max_tokens=n_tokens,
                temperature=0.8,
                seed=3,
                extra_body={"ignore_eos": True},
            )

        found = []
        asking = threading.Thread(target=lambda: found.append(ask(400).choices[0].text))
        asking.start()
        deadline = time.monotonic() + PATIENCE
        while httpx.get(f"{address}/health").json()["open"] == 0:
            assert time.monotonic() < deadline

        server.send_signal(signal.SIGTERM)
        asking.join(PATIENCE)
        assert found == [expected]
        assert server.wait(PATIENCE) == -signal.SIGTERM
        assert server.stderr.read() == ""


@pytest.mark.slow
def test_an_answer_that_takes_too_long_does_not_keep_the_server(chatty):
    def impatient():
        server_module.FINISHING = 1  # second
        programs.gptmini()

    arguments = ("serve", str(chatty), "--port", "0", "--ignore-end-of-text")
    arguments = (*arguments, "--max-new-tokens", "10000000")
    with programs.start(*arguments, program=impatient, text=True) as server:
        address = re.search(r"http://[^ ]+", server.stdout.readline()).group()
        url = f"{address}/v1/completions"
        body = {"model": "chat.ckpt", "prompt": "Hi", "max_tokens": 10_000_000}
        found = []
        whole = threading.Thread(
            target=lambda: found.append(httpx.post(url, json=body, timeout=PATIENCE))
        )
        whole.start()
        with httpx.stream("POST", url, json=body | {"stream": True}, timeout=PATIENCE) as got:
            lines = got.iter_lines()
            next(lines)
            began = time.monotonic()
            server.send_signal(signal.SIGTERM)
            *_, last = filter(None, lines)
            assert server.wait(PATIENCE) == -signal.SIGTERM
            assert 0.5 < time.monotonic() - began < 9
        whole.join(PATIENCE)
        assert found[0].status_code == 503
        for error in (found[0].json(), json.loads(last.removeprefix("data: "))):
            assert error["error"]["type"] == "server_error"
        assert server.stderr.read().count("\n") <= 1


@pytest.mark.slow
def test_half_open_connections_never_shut_others_out_nor_fill_the_log(chatty):
    def with_few_files():
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
        programs.gptmini()

    allow_open_files(1100)  # of this process
    arguments = ("serve", str(chatty), "--port", "0")
    with (
        contextlib.ExitStack() as held,
        programs.start(*arguments, program=with_few_files, text=True) as server,
    ):
        port = int(re.search(r"http://[^ ]+:(\d+)", server.stdout.readline()).group(1))
        for _ in range(1100):
            connection = held.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: local")
        # The server looks for idle connections ten times per second.
        url = f"http://127.0.0.1:{port}/health"
        ends = time.monotonic() + PATIENCE
        while httpx.get(url, timeout=PATIENCE).status_code != 200:
            assert time.monotonic() < ends
            time.sleep(0.1)
        server.send_signal(signal.SIGTERM)
        assert server.stderr.read() == ""


@pytest.mark.parametrize(
    ("longest", "options", "context"),
    [(96, [], None), (96, ["--context", "64", "--host", "0.0.0.0"], 64), (9000, [], 8192)],
)
def test_the_first_lines_have_the_dtype_an_address_that_works_and_a_context_that_is_cut(
    tmp_path, script, monkeypatch, longest, options, context
):
    monkeypatch.setattr("gptmini.serving.server.QuietServer.run", lambda self, sockets: None)
    path = save_model(tmp_path / "chat.ckpt", CHAT, context_length=longest)
    result = script(
        "serve", str(path), "--port", "0", "--allow-origin", "HTTPS://a.example/", *options
    )
    assert re.search(r"chat.ckpt in fp32 at http://127.0.0.1:\d+ ", result.out)
    assert ("of at most" in result.err) == (context is not None)
    assert context is None or f"{context} of at most {longest} tokens" in result.err


def test_a_server_for_the_network_knows_its_own_names():
    assert own_names("127.0.0.1") == ["127.0.0.1"]
    assert own_names("0.0.0.0")[0] == socket.gethostname()


def test_mistakes_are_one_line(chatty, script, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        script("serve", str(chatty), "--port", port).assert_refused(port, "--port")
    for options, named in [
        (["--top-p", "3"], "top_p"),
        (["--port", "99999"], "99999"),
        (["--allow-host", "a*b"], "a*b"),
        (["--allow-host", ""], "--allow-host"),
        (["--allow-origin", "a.example"], "--allow-origin"),
        (["--allow-origin", "https://a.example/path"], "--allow-origin"),
        (["--host", ""], "--host"),
        (["--host", "\udcff"], "--host"),
        (["--stop", ""], "stop"),
        (["--api-key", ""], "--api-key"),
        (["--api-key", "k\u00e9y"], "--api-key"),
    ]:
        script("serve", str(chatty), "--port", "0", *options).assert_refused(named)

    monkeypatch.setattr("gptmini.commands.serve.find_spec", lambda name: None)
    script("serve", str(chatty)).assert_refused("[serve]'")
