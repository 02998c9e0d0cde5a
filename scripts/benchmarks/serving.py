"""Measure gptmini serve with many clients at the same time.

The server runs in its own process, and the clients share another one. The character model has random weights. --model
adds a real model. Each request asks for a completion with the same number of tokens.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx

from gptmini.system.errors import UserError

from .harness import GPTMINI, Table, in_turns, positive, ratios
from .sampling import write_character_model

AT_ONCE = 8  # clients whose answers are generated together; this is also --batch-size of the server
MANY = 32  # clients that ask at the same time; 24 of them wait
CHECKED = 32  # tokens of each answer that is compared
PROMPT = "Once upon a time"
PATIENCE = 600  # seconds


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--model", type=Path, help="also measure this run, checkpoint or folder")
    parser.add_argument("--new-tokens", type=positive, default=128, help="tokens per answer")


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Measure the character model and, if there is one, the real model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "char.ckpt"
        write_character_model(path)
        measure_model(table, arguments, path, "character model")
    if arguments.model is not None:
        measure_model(table, arguments, arguments.model, arguments.model.resolve().name)


def measure_model(table: Table, arguments: argparse.Namespace, path: Path, called: str) -> None:
    """Add the rows of one model."""
    n_tokens = arguments.new_tokens
    with serving(path) as url:

        def speed(n_clients: int) -> float:
            _, seconds = asyncio.run(ask_all(url, n_clients, n_tokens))
            return n_clients * n_tokens / seconds

        def first_token() -> float:
            return 1000 * asyncio.run(seconds_to_first_token(url, n_tokens))

        speed(AT_ONCE)  # warm-up
        kinds = {
            "one": partial(speed, 1),
            "eight": partial(speed, AT_ONCE),
            "first token": first_token,
        }
        found = in_turns(arguments.turns, kinds)
        table.add_median(f"{called}: tokens per second, 1 client", found["one"])
        table.add_median(f"{called}: tokens per second, {AT_ONCE} clients", found["eight"])
        speeds = ratios(found["eight"], found["one"])
        table.add_median(f"{called}: {AT_ONCE} clients divided by 1", speeds)
        called_first = f"{called}: milliseconds to the first token, 1 client"
        table.add_median(called_first, found["first token"])

        alone = [asyncio.run(ask_all(url, 1, CHECKED, first=i))[0][0] for i in range(MANY)]
        together, _ = asyncio.run(ask_all(url, MANY, CHECKED))
        table.add(
            f"{called}: answers to {MANY} clients at once that differ from those to one",
            sum(a != b for a, b in zip(alone, together, strict=True)),
            goal="0",
            method="1 turn",
        )


@contextlib.contextmanager
def serving(path: Path) -> Iterator[str]:
    """Start gptmini serve on a free port, and yield its address; raise UserError if the server does not start."""
    command = [*GPTMINI, "serve", str(path), "--port", "0", "--batch-size", str(AT_ONCE)]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            for line in process.stdout:
                if found := re.search(r"http://[^ ]+", line):
                    yield found.group()
                    return
            raise UserError(f"the server did not start: {' '.join(command)}")
        finally:
            process.terminate()


def request(seed: int, n_tokens: int, model: str) -> dict:
    """Return the body of a request."""
    return {
        "model": model,
        "prompt": PROMPT,
        "max_tokens": n_tokens,
        "seed": seed,
        "ignore_eos": True,
    }


async def ask_all(
    url: str, n_clients: int, n_tokens: int, *, first: int = 0
) -> tuple[list[str], float]:
    """Ask for completions at the same time; return them and the seconds that all of them took.

    Client number i uses the seed first + i.
    """
    async with httpx.AsyncClient(base_url=f"{url}/v1/", timeout=PATIENCE) as client:
        model = (await client.get("models")).json()["data"][0]["id"]

        async def ask(seed: int) -> str:
            body = request(seed, n_tokens, model)
            answer = await client.post("completions", json=body)
            answer.raise_for_status()
            assert answer.json()["usage"]["completion_tokens"] == n_tokens
            return answer.json()["choices"][0]["text"]

        began = time.perf_counter()
        texts = await asyncio.gather(*(ask(first + i) for i in range(n_clients)))
        return texts, time.perf_counter() - began


async def seconds_to_first_token(url: str, n_tokens: int) -> float:
    """Return the seconds from a request to the first token of its streamed answer."""
    async with httpx.AsyncClient(base_url=f"{url}/v1/", timeout=PATIENCE) as client:
        model = (await client.get("models")).json()["data"][0]["id"]
        body = request(1, n_tokens, model) | {"stream": True}
        began = time.perf_counter()
        async with client.stream("POST", "completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    assert "choices" in json.loads(line.removeprefix("data:"))
                    break
        return time.perf_counter() - began
