"""Malformed requests never stop the server, and leave no memory behind."""

import json
import random
from pathlib import Path

import httpx
import pytest

from serving.clients import LETTERS, PATIENCE, served

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "abc?"}], "max_tokens": 2}
COMPLETION = {"model": "tiny", "prompt": "abc", "max_tokens": 2}
JSON = {"content-type": "application/json"}

pytestmark = pytest.mark.slow


# Values of other types, out of range, or that Python accepts and JSON, UTF-8 or torch does not.
VALUES = [
    None,
    True,
    -1,
    0,
    2**63,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "\ud800",
    "%",
    "x" * 5000,
    [],
    [[]],
    [None],
    [-1],
    [2**70],
    ["abc", 1],
    {},
    {"role": "user"},
    [{"role": 3, "content": "abc"}],
    [{"role": "user", "content": [{"type": "image_url"}]}],
    [{"role": "user", "content": "\ud800"}],
]


def malformed(draw):
    """Return the path and the body of a request that OpenAI's API would refuse."""
    path, valid = draw.choice([("chat/completions", CHAT), ("completions", COMPLETION)])
    fields = [*valid, "temperature", "top_p", "n", "stop", "seed", "logprobs", "stream_options"]
    body = dict(valid) | {draw.choice(fields): draw.choice(VALUES)}
    text = json.dumps(body).encode()
    match draw.randrange(4):
        case 0:
            return path, text
        case 1:
            return path, text[: draw.randrange(len(text))]
        case 2:
            return path, draw.randbytes(draw.randrange(200))
        case _:
            return path, b"[" * draw.randrange(1, 20_000)


def resident():
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_thousand_malformed_requests_get_errors_of_one_line(model, capfd):
    draw = random.Random(55)
    sizes = []
    with served(model, LETTERS, batch_size=2, max_bytes=30_000) as (url, engine):
        with httpx.Client(base_url=f"{url}/v1/", timeout=PATIENCE) as client:
            for number in range(1000):
                path, body = malformed(draw)
                answer = client.post(path, content=body, headers=JSON)
                # A field may be null, and a few of the values are valid in some of the fields.
                assert answer.status_code == 200 or 400 <= answer.status_code < 500, body[:200]
                if answer.status_code != 200:
                    error = answer.json()["error"]
                    assert set(error) == {"message", "type", "param", "code"}
                    assert len(error["message"]) < 500, body[:200]
                    assert "\n" not in error["message"], body[:200]
                if number in (299, 999):
                    sizes.append(resident())
            assert client.post("completions", json=COMPLETION).status_code == 200
        assert engine.n_open == 0
    assert "Traceback" not in capfd.readouterr().err
    assert sizes[1] - sizes[0] < 20e6  # bytes
