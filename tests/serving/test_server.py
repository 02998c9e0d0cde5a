"""OpenAI's client gets what gptmini draws, and everything else gets an error in OpenAI's form."""

import asyncio
import functools
import json
import socket

import httpx
import openai
import pytest
import torch

from gptmini.generation import generate
from gptmini.model import GPT
from gptmini.serving import listen
from gptmini.tokenizer import CharTokenizer, chat_encoder_of
from gptmini.tokenizer.chat.template import ChatTemplate
from serving.clients import LETTERS, served
from sizes import TALKATIVE
from toys import wide_gpt

NESTED = functools.reduce(lambda value, _: [value], range(197), 1)  # and three levels around it
JSON = {"content-type": "application/json"}
QUESTION = [{"role": "user", "content": "abc?"}]


@pytest.fixture(scope="module")
def address(model):
    with served(model, LETTERS, max_tokens=64) as (url, _):
        yield url


@pytest.fixture
def client(address):
    """A client that checks every answer against OpenAI's types."""
    return openai.OpenAI(
        base_url=f"{address}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    )


def test_asyncio_sends_each_chunk_at_once():
    # asyncio sets TCP_NODELAY only on sockets with this protocol. Without it, each answer took 44 ms instead of 3 ms.
    with listen("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP


def test_there_is_one_model(client, address):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").object == "model"
    with pytest.raises(openai.NotFoundError, match="tiny"):
        client.models.retrieve("other")
    assert httpx.get(f"{address}/health").json()["status"] == "ok"


def test_completions_are_the_samples_of_the_same_seed(client, model):
    rules = {"temperature": 0.9, "top_p": 0.95, "seed": 3}
    expected = generate(model, LETTERS, ["abc", "ha"], num_samples=2, max_new_tokens=12, **rules)
    answer = client.completions.create(
        model="tiny", prompt=["abc", "ha"], n=2, max_tokens=12, **rules
    )
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == 5

    ids = client.completions.create(
        model="tiny", prompt=LETTERS.encode("abc"), max_tokens=12, echo=True, **rules
    )
    assert ids.choices[0].text == "abc" + expected[0]


def test_completion_tokens_count_every_token_and_each_has_a_log_probability(client, model):
    answer = client.completions.create(
        model="tiny", prompt="abc", max_tokens=30, temperature=2.5, seed=1, logprobs=3
    )
    (choice,) = answer.choices
    probabilities = choice.logprobs
    assert choice.finish_reason == "stop"
    assert answer.usage.completion_tokens == len(probabilities.tokens) < 30
    assert probabilities.tokens[-1] == "<|endoftext|>"
    assert "".join(probabilities.tokens[:-1]) == choice.text

    ids = [*LETTERS.encode("abc" + choice.text), LETTERS.end_of_text]
    with torch.no_grad():
        expected = model(torch.tensor([ids[:-1]]))[0, 2:].log_softmax(-1)  # (n, V)
    found = [expected[i, token].item() for i, token in enumerate(ids[3:])]
    assert probabilities.token_logprobs == pytest.approx(found, abs=1e-9)
    for i, likeliest in enumerate(probabilities.top_logprobs):
        values = expected[i].topk(3).values.tolist()
        values += [] if found[i] in values else [found[i]]  # the drawn token is always there
        assert sorted(likeliest.values(), reverse=True) == pytest.approx(values, abs=1e-9)


def test_a_chat_is_the_continuation_of_its_prompt(client, model):
    prompt = LETTERS.decode(chat_encoder_of(LETTERS).prompt(QUESTION))
    options = {"temperature": 0.9, "seed": 3}
    (text,) = generate(model, LETTERS, prompt, max_new_tokens=12, **options)
    answer = client.chat.completions.create(
        model="tiny",
        messages=QUESTION,
        max_completion_tokens=12,
        logprobs=True,
        top_logprobs=2,
        **options,
    )
    (choice,) = answer.choices
    assert choice.message.content == text.removeprefix(" ")
    assert len(choice.logprobs.content) == answer.usage.completion_tokens
    assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
    assert bytes(choice.logprobs.content[0].bytes).decode() == choice.logprobs.content[0].token

    pieces = client.chat.completions.create(
        model="tiny",
        messages=QUESTION,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
        **options,
    )
    # As OpenAI sends them, the role comes before the text, and the reason of the end after it.
    first, *chunks, end, last = list(pieces)
    assert first.choices[0].delta.role == "assistant"
    assert first.choices[0].delta.content == ""
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == choice.message.content
    assert {chunk.choices[0].finish_reason for chunk in chunks} == {None}
    assert end.choices[0].delta.model_dump(exclude_none=True) == {}
    assert end.choices[0].finish_reason == choice.finish_reason
    assert last.usage == answer.usage


def test_an_answer_goes_on_where_its_text_ends(client, model):
    answer = client.chat.completions.create(
        model="tiny",
        messages=[*QUESTION, {"role": "assistant", "content": "be in"}],
        max_tokens=6,
        temperature=0,
        extra_body={"continue_final_message": True},
    )
    # The built-in template has a space before an answer.
    ids = chat_encoder_of(LETTERS).prompt(QUESTION) + LETTERS.encode(" be in")
    (text,) = generate(model, LETTERS, [ids], max_new_tokens=6, temperature=0)
    assert answer.choices[0].message.content == text


def test_a_chat_is_rendered_once(client, monkeypatch):
    texts = []
    render = ChatTemplate.render

    def keep_text(self, messages, **options):
        texts.append(render(self, messages, **options))
        return texts[-1]

    monkeypatch.setattr(ChatTemplate, "render", keep_text)
    client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=1)
    assert len(texts) == 1


def test_a_streamed_completion_has_the_same_text(address):
    # The strict client refuses finish_reason null in a stream of completions, which OpenAI itself sends.
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
    options = {"model": "tiny", "prompt": "abc", "max_tokens": 12, "temperature": 0.9, "n": 2}
    whole = client.completions.create(**options)
    texts = ["", ""]
    for chunk in client.completions.create(stream=True, **options):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


@pytest.mark.parametrize(
    ("path", "body", "status", "names"),
    [
        ("completions", {"model": "other"}, 404, "other"),
        ("completions", {"model": "\ud800"}, 400, "valid JSON"),
        ("completions", {"model": "\x1b[2J"}, 404, r"\x1b[2J"),
        ("completions", {"temprature": 0}, 400, "temperature"),
        ("completions", {"stream_options": {"include_usage": True}}, 400, "stream"),
        ("completions", {"prompt": "%"}, 400, "'%'"),
        ("completions", {"prompt": [999]}, 400, "999"),
        ("completions", {"prompt": [1] * 100}, 400, "100"),
        ("completions", {"stop": ["a"] * 129}, 400, "128"),
        ("completions", {"prompt": ["a"] * 21, "n": 5}, 400, "104"),
        ("completions", [], 400, "object"),
        ("chat/completions", {}, 400, "messages"),
        ("chat/completions", {"messages": [{"role": "user"}]}, 400, "message 1"),
        ("chat/completions", {"messages": QUESTION, "top_logprobs": 2}, 400, "logp"),
        (
            "chat/completions",
            {"messages": QUESTION, "continue_final_message": True},
            400,
            "assistant",
        ),
        ("chat/completions", {"messages": [QUESTION[0] | {"x": [NESTED]}]}, 400, "valid JSON"),
        ("nothing", {}, 404, "/v1/nothing"),
        ("../chat/completions", {}, 404, "/v1"),
    ],
)
def test_a_bad_request_gets_openais_error(address, path, body, status, names):
    response = httpx.post(f"{address}/v1/{path}", content=json.dumps(body), headers=JSON)
    error = response.json()["error"]
    assert response.status_code == status, error
    assert set(error) == {"message", "type", "param", "code"}
    assert names in error["message"]


@pytest.mark.parametrize(
    ("path", "body_of"),
    [
        ("v1/completions", lambda text: {"model": "tiny", "prompt": text}),
        ("v1/completions", lambda text: {"model": "tiny", "prompt": ["a", text]}),
        (
            "v1/chat/completions",
            lambda text: {"model": "tiny", "messages": [{"role": "user", "content": text}]},
        ),
        ("attention", lambda text: {"messages": [{"role": "user", "content": text}]}),
    ],
)
def test_a_prompt_is_encoded_in_a_thread_of_its_own_if_it_can_fit(
    address, monkeypatch, path, body_of
):
    encode = CharTokenizer.encode

    def encode_outside_the_loop(self, text):
        assert asyncio._get_running_loop() is None
        return encode(self, text)

    monkeypatch.setattr(CharTokenizer, "encode", encode_outside_the_loop)
    url = f"{address}/{path}"
    assert httpx.post(url, json=body_of("ab")).status_code == 200
    # The longest of the 64 tokens has 13 characters. Encoding this prompt would be another error.
    error = httpx.post(url, json=body_of("%" * 900)).json()["error"]
    assert error["code"] == "context_length_exceeded"
    # LiteLLM and LangChain look for these words.
    assert "This model's maximum context length is 64 tokens." in error["message"]
    assert error["param"] == ("prompt" if path == "v1/completions" else "messages")


def test_other_sites_and_other_content_types_are_refused(address):
    body = json.dumps({"model": "tiny", "prompt": "abc"})
    url = f"{address}/v1/completions"
    assert httpx.post(url, content=body, headers={"content-type": "text/plain"}).status_code == 415
    assert (
        httpx.post(url, content="{", headers={"content-type": "application/json"}).status_code
        == 400
    )
    evil = httpx.get(f"{address}/", headers={"host": "evil.example"})
    assert evil.status_code == 400
    assert "--allow-host evil.example" in evil.json()["error"]["message"]
    assert evil.headers["x-content-type-options"] == "nosniff"
    origin = {"origin": "https://evil.example"}
    assert (
        "access-control-allow-origin" not in httpx.get(f"{address}/health", headers=origin).headers
    )


def test_a_large_body_and_a_full_queue_are_refused(model):
    limits = {"batch_size": 1, "max_waiting": 1, "max_bytes": 2000, "max_tokens": 10**6}
    with served(model, LETTERS, **limits) as (url, _):
        url = f"{url}/v1/completions"
        large = {"model": "tiny", "prompt": "a" * 3000}
        assert httpx.post(url, json=large).status_code == 413

        endless = {"model": "tiny", "max_tokens": 10**6, "ignore_eos": True, "n": 2}
        with httpx.stream("POST", url, json=endless | {"stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            response = httpx.post(url, json=endless)
            del lines  # httpx closes the connection when nothing reads the lines
        assert response.status_code == 503
        assert response.headers["retry-after"]


def test_a_key_is_required_where_it_is_set(model):
    with served(model, LETTERS, api_key="secret") as (url, _):
        refused = httpx.get(f"{url}/v1/models")
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert httpx.get(f"{url}/health").json() == {"status": "ok", "needs_key": True}
        key = {"authorization": "bearer secret"}
        assert httpx.get(f"{url}/health", headers=key).json()["model"] == "tiny"
        disguised = {"host": "127.0.0.1:8000/health?"}
        assert httpx.get(f"{url}/v1/models", headers=disguised).status_code in (400, 401)
        assert httpx.get(url).status_code == 200
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{url}/v1", api_key="wrong").models.list()
        assert openai.OpenAI(base_url=f"{url}/v1", api_key="secret").models.list().data


def test_a_client_that_leaves_frees_its_row(model):
    with served(model, LETTERS, batch_size=1, max_tokens=10**6) as (url, engine):
        endless = {"model": "tiny", "prompt": "a", "max_tokens": 10**6, "ignore_eos": True}
        with httpx.stream(
            "POST", f"{url}/v1/completions", json=endless | {"stream": True}
        ) as answer:
            next(answer.iter_lines())
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/completions", json=endless, timeout=0.5)
        short = endless | {"max_tokens": 3}
        assert httpx.post(f"{url}/v1/completions", json=short, timeout=60).status_code == 200
        assert engine.n_open == 0


def test_attention_of_a_long_text_is_that_of_its_last_tokens(model):
    text = "abcdefg" * 15
    sizes = TALKATIVE | {"vocab_size": LETTERS.n_vocab, "context_length": 128}
    longer = wide_gpt(sizes, dtype=torch.float64).eval()
    with served(longer, LETTERS) as (url, _):
        answer = httpx.post(f"{url}/attention", json={"text": text}).json()
        longest = httpx.post(f"{url}/attention", json={"text": text * 20}).json()
    assert answer["n_tokens"] == 105
    assert answer["tokens"] == longest["tokens"] == list(text[-64:])
    with torch.no_grad():
        whole = longer.attention_weights(torch.tensor([LETTERS.encode(text)]), [0, 1])[:, 0]
    expected = whole[..., -64:, -64:].float()  # (N, H, 64, 64)
    torch.testing.assert_close(torch.tensor(answer["weights"]), expected, atol=6e-4, rtol=0)


def test_browsers_may_send_the_headers_of_openais_client(model):
    origins = ["https://page.example", "https://other.example"]
    with served(model, LETTERS, allow_origins=origins) as (url, _):
        asked = {
            "origin": origins[0],
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type,x-stainless-lang",
        }
        answer = httpx.options(f"{url}/v1/chat/completions", headers=asked)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://page.example"


def test_an_echoed_prompt_has_the_log_probabilities_of_its_tokens(address, model, monkeypatch):
    monkeypatch.setattr("gptmini.serving.inspection.AT_ONCE", 3)  # fewer than the tokens
    sizes = []
    unembed = GPT.unembed

    def keep_size(self, hidden, weight=None):
        sizes.append(hidden.size(1))
        return unembed(self, hidden, weight)

    monkeypatch.setattr(GPT, "unembed", keep_size)
    # The strict client refuses null as the log-probability of the first token, which OpenAI itself sends.
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
    answer = client.completions.create(
        model="tiny", prompt="abcab", max_tokens=3, seed=1, logprobs=2, echo=True
    )
    (choice,) = answer.choices
    found = choice.logprobs
    assert max(sizes) == 3  # the logits of all tokens could fill the memory
    assert choice.text.startswith("abcab")
    assert found.tokens[:5] == list("abcab")
    assert found.text_offset == list(range(8))

    ids = LETTERS.encode("abcab")
    with torch.no_grad():
        expected = model(torch.tensor([ids]))[0].log_softmax(-1)  # (5, V)
    chosen = [expected[i - 1, ids[i]].item() for i in range(1, 5)]
    assert found.token_logprobs[:5] == [None, *(pytest.approx(value, abs=1e-9) for value in chosen)]
    assert found.top_logprobs[0] is None
    values = found.top_logprobs[1].values()
    assert sorted(values, reverse=True)[:2] == pytest.approx(expected[0].topk(2).values.tolist())
    assert chosen[0] in [pytest.approx(value, abs=1e-9) for value in values]

    one = client.completions.create(model="tiny", prompt="a", max_tokens=1, echo=True, logprobs=0)
    assert one.choices[0].logprobs.token_logprobs[0] is None

    empty = client.completions.create(model="tiny", prompt="", max_tokens=3, echo=True, seed=1)
    expected = generate(model, LETTERS, "", max_new_tokens=3, temperature=1.0, seed=1)
    assert [empty.choices[0].text] == expected


def test_a_chat_never_slides_out_of_the_context(client):
    long = [{"role": "user", "content": "abc" * 14}]
    n_prompt = len(chat_encoder_of(LETTERS).prompt(long))
    answer = client.chat.completions.create(
        model="tiny", messages=long, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 64 - n_prompt + 1
