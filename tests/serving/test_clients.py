"""Requests as real programs send them are answered, or the field that changes the answer is named."""

import json

import httpx
import pytest

from gptmini.generation import generate
from serving.clients import LETTERS, served

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "abc?"}]}
PARTS = [{"role": "user", "content": [{"type": "text", "text": "abc?"}]}]
TEXT = {"model": "tiny", "prompt": "abc"}
OFF = {"frequency_penalty": 0, "presence_penalty": 0}
USAGE = {"stream": True, "stream_options": {"include_usage": True, "other": 5}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
SEED = {"seed": 3, "temperature": 0.9}


@pytest.fixture(scope="module")
def url(model):
    with served(model, LETTERS, seed=None, max_tokens=20) as (address, _):
        yield f"{address}/v1"


def answer_of(url, body):
    """Return the text, the reason of the end and the usage of an answer, streamed or not."""
    path = "chat/completions" if "messages" in body else "completions"
    response = httpx.post(f"{url}/{path}", json=body, timeout=60)
    assert response.status_code == 200, response.json()["error"]
    if not body.get("stream"):
        (choice,) = response.json()["choices"]
        text = choice["message"]["content"] if "messages" in body else choice["text"]
        return text, choice["finish_reason"], response.json()["usage"]
    *events, done = response.text.split("\n\n")[:-1]
    assert done == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    texts = [one["delta"].get("content", "") if "delta" in one else one["text"] for one in choices]
    return "".join(texts), choices[-1]["finish_reason"], chunks[-1].get("usage")


@pytest.mark.parametrize(
    ("body", "same"),
    [
        # The second body has the same answer, without the fields that have no effect.
        (CHAT | {"max_tokens": -1, "temperature": 0.7, "stream": False}, {"temperature": 0.7}),  # LM Studio
        (CHAT | USAGE | {"max_completion_tokens": 1000}, {}),  # Open WebUI: a title
        (CHAT | {"max_tokens": 4096, "stop": ["\n\n"], **OFF, **USAGE}, {}),  # Continue
        (TEXT | {"max_tokens": 4096, "stop": ["?"] * 20, **OFF, "suffix": ""}, {"max_tokens": 20, "stop": "?"}),
        (CHAT | USAGE | {"messages": PARTS, "temperature": 0, "max_tokens": 8192}, {"temperature": 0}),  # Cline
        (CHAT | {"temperature": 0, "stream": True}, {"temperature": 0}),  # aider
        (CHAT | {"top_k": 0, "min_p": 0, "top_p": 1, "n": 1, "stop": [], "logit_bias": {}, **OFF}, {}),  # SillyTavern
        (TEXT | {"top_k": -1, "typical_p": 1, "tfs": 1, "mirostat_mode": 0, "min_tokens": 0, "ignore_eos": False,
                 "skip_special_tokens": True, "early_stopping": False, "stop_token_ids": []}, {}),  # SillyTavern
        (CHAT | {"stop": None, "tools": None, "audio": None, "prediction": None, "n": None}, {}),  # LangChain
        (TEXT | {"best_of": 1, "logit_bias": {}, "logprobs": None, **OFF}, {}),  # LangChain's OpenAI
        (CHAT | {"temperature": 0.1, "tool_choice": "auto"}, {"temperature": 0.1}),  # LlamaIndex
        (CHAT | {"messages": PARTS, "user": "me", "response_format": {"type": "text"}, **USAGE}, {}),  # AI SDK
        (CHAT | {"temperature": 0, "top_p": 0, "stop": ""}, {"temperature": 0}),
        (CHAT | {"cache_prompt": True, "timings_per_token": True, "id_slot": -1}, {}),  # llama.cpp's page
        (CHAT | {"repetition_penalty": 1.0, "add_generation_prompt": True, "chat_template_kwargs": {}}, {}),
    ],
)  # fmt: skip
def test_fields_without_effect_are_accepted(url, body, same):
    plain = {name: value for name, value in body.items() if name in ("model", "prompt")}
    plain |= {"messages": CHAT["messages"]} if "messages" in body else {}
    text, finish, usage = answer_of(url, SEED | body)
    expected = answer_of(url, SEED | plain | same)
    assert (text, finish) == expected[:2]
    assert usage in (None, expected[2])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [TOOL]}, "tools"),  # instructor, LangChain, Cline
        ({"response_format": {"type": "json_object"}}, "response_format"),  # instructor
        ({"functions": [TOOL["function"]]}, "functions"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"min_tokens": 5}, "min_tokens"),
        ({"mirostat_mode": 2}, "mirostat_mode"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"grammar": "root ::= [a]"}, "grammar"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
    ],
)
def test_fields_that_would_change_the_answer_are_refused_by_name(url, fields, named):
    response = httpx.post(f"{url}/chat/completions", json=CHAT | fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == named


def test_an_answer_is_new_unless_a_seed_is_given(url, model):
    rules = {"temperature": 1.5, "max_tokens": 20}
    assert len({answer_of(url, TEXT | rules)[0] for _ in range(5)}) > 1
    (expected,) = generate(model, LETTERS, "abc", max_new_tokens=20, temperature=1.5, seed=-1)
    assert answer_of(url, TEXT | rules | {"seed": -1})[0] == expected


def test_a_completion_without_new_tokens_scores_its_prompt(url):
    body = TEXT | {"max_tokens": 0, "echo": True, "logprobs": 1}
    text, finish, usage = answer_of(url, body)
    assert (text, finish, usage["completion_tokens"]) == ("abc", "length", 0)
    assert answer_of(url, body | {"stream": True})[:2] == ("abc", "length")
    refused = httpx.post(f"{url}/completions", json=TEXT | {"max_tokens": 0})
    assert refused.json()["error"]["param"] == "max_tokens"


def test_the_template_gets_its_options_and_the_role_developer_is_system(model):
    template = "{{ messages[0].role if mode is defined and mode else 'a' }}"
    tokenizer = LETTERS.with_template(template)
    body = CHAT | {"messages": [{"role": "developer", "content": "a"}], "max_tokens": 1}
    tokens = []
    with served(model, tokenizer) as (url, _):
        for mode in (False, True):
            options = {"chat_template_kwargs": {"mode": mode}}
            tokens.append(answer_of(f"{url}/v1", body | options)[2]["prompt_tokens"])
    assert tokens == [len("a"), len("system")]


def test_a_prompt_may_contain_special_tokens(url):
    text = "ab<|endoftext|>"
    body = {"model": "tiny", "prompt": text, "max_tokens": 1, "add_special_tokens": False}
    assert answer_of(url, body)[2]["prompt_tokens"] == 3


def test_addresses_and_given_names_are_known_and_an_unknown_host_is_logged_once(model, capsys):
    known = ["127.0.0.1", "0.0.0.0:80", "[::1]:80", "localhost", "a.name", "MINE"]
    with served(model, LETTERS, allowed_hosts=["*.name", "mine"]) as (url, _):
        for host in [*known, "compose.service", "compose.service"]:
            response = httpx.get(f"{url}/health", headers={"host": host})
            assert response.status_code == (200 if host in known else 400)
    assert capsys.readouterr().err.count("compose.service") == 1
