"""A page with a model in it computes what the model computes, in a real browser and without any request."""

import json
import random
from importlib.resources import files

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers

from browsers import awaited
from gptmini.generation import generate_stream
from gptmini.model import GPTConfig, new_gpt
from gptmini.page import write_page
from gptmini.page.tokenizer_settings import tokenizer_settings
from gptmini.system.errors import UserError
from gptmini.tokenizer import (
    CharTokenizer,
    LibraryTokenizer,
    bpe,
    byte,
    chat_encoder_of,
    with_chat_template,
)
from interop.library_tokenizers import learned, of_sentence_piece
from sizes import GPT2, LLAMA, MODERN, SMEARED
from tokenizer.texts import CHINESE, WORDS
from toys import documents_of

PROMPTS = ["A cat", "", "ä€日", "the hat is in the attic and the rat is here, too"]
LETTERS = "".join(sorted({*"".join(PROMPTS), *"\nUser: Assistant?"}))
TOKENIZER = with_chat_template(CharTokenizer(LETTERS, end_of_text=True))
SIZES = {"vocab_size": TOKENIZER.n_vocab, "context_length": 40}
FORMS = {
    "gpt2": GPT2,
    "nanogpt": GPT2 | {"mlp": "gelu_exact", "bias": False, "tie_embeddings": False},
    "llama": LLAMA | {"qk_norm": False, "attention_bias": None, "n_kv_heads": 2},
    "llama 3": LLAMA | {"rotary_scaling": {"factor": 4.0}, "full_context_length": 60},
    "qwen 3": LLAMA | {"n_kv_heads": 1, "tie_embeddings": True},
    "nanochat": MODERN,
    "smeared": SMEARED | {"mlp": "square", "attention_scale": 0.4, "norm_eps": 1e-4},
}
HOSTILE = "</script><script>document.title = 1</script><img src=x onerror=alert(1)>"
pytestmark = pytest.mark.slow


def made(form, **changes):
    """Return a model in eval mode in which every weight matters."""
    model = new_gpt(GPTConfig(**form | SIZES | changes), seed=0).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.15)
    return model


def written(model, folder, *, tokenizer=TOKENIZER, dtype="fp32", name="tiny"):
    out = folder / "model.html"
    write_page(
        out,
        model,
        tokenizer,
        name=name,
        dtype=dtype,
        defaults={"temperature": 0.8, "max_tokens": 99},
    )
    return out


def opened(browser, *arguments, **options):
    browser.get_log("browser")
    browser.get(written(*arguments, **options).as_uri())


def assert_likeliest(browser, model, prompt="ten hats"):
    """Assert that the page has the log-probabilities of a model for the token after a prompt."""
    script = """await (async () => {
      for await (const piece of engine.generate({prompt: arguments[0]}, {max_tokens: 1})) {
        if (piece.tokens.length) return piece.tokens[0].likeliest;
      }
    })()"""
    shown = awaited(browser, script, prompt)
    with torch.no_grad():
        logits = model(torch.tensor([TOKENIZER.encode(prompt)]))[0, -1]
    expected = logits.double().log_softmax(-1).topk(10)
    assert [text for text, _ in shown] == [TOKENIZER.decode([i]) for i in expected.indices.tolist()]
    assert [value for _, value in shown] == pytest.approx(expected.values.tolist(), abs=1e-4)


def ids_of(model, prompt, n):
    return [
        piece.token
        for piece in generate_stream(model, TOKENIZER, prompt, temperature=0, max_new_tokens=n)
    ]


@pytest.mark.parametrize("form", FORMS)
def test_ids_and_logits_are_those_of_the_model_also_beyond_the_context(browser, tmp_path, form):
    model = made(FORMS[form])
    opened(browser, model, tmp_path)
    exact = model.double()  # the browser computes with 64 bits, too
    for prompt in PROMPTS:
        options = {"maxNewTokens": 100, "temperature": 0}
        result = awaited(browser, "await gptmini.generate(...arguments)", prompt, options)
        assert result["ids"] == ids_of(exact, prompt, 100)
        kept = [i for i in result["ids"] if i != TOKENIZER.end_of_text]
        assert result["text"] == TOKENIZER.decode(kept)

    assert_likeliest(browser, exact)


def test_smaller_dtypes_round_each_weight_as_numpy_does(browser, tmp_path):
    model = made(LLAMA)
    names = [name for name, weight in model.named_parameters() if weight.ndim == 2]
    for dtype in ("bf16", "int8"):
        opened(browser, model, tmp_path, dtype=dtype)
        rounded = made(LLAMA).double()
        with torch.no_grad():
            for name in names:
                weight = model.get_parameter(name)
                exact = weight.detach().numpy()
                scales = np.abs(exact).max(1, keepdims=True) / np.float32(127)
                value = np.rint(exact / scales) * scales
                if dtype == "bf16":  # the upper half of the bits, rounded to even
                    bits = exact.view(np.uint32)
                    rounding = 0x7FFF + ((bits >> 16) & 1)
                    value = ((bits + rounding) & 0xFFFF0000).astype(np.uint32).view(np.float32)
                rounded.get_parameter(name).copy_(torch.from_numpy(value))
        assert_likeliest(browser, rounded)


def test_rules_seeds_chats_and_attention(browser, tmp_path):
    model = made(GPT2)
    opened(browser, model, tmp_path)

    def said(prompt="A", **options):
        return awaited(browser, "await gptmini.generate(...arguments)", prompt, options)

    greedy = said(temperature=0, maxNewTokens=30)
    assert said(topK=1, maxNewTokens=30) == said(topP=1e-9, maxNewTokens=30) == greedy
    assert said(seed=5) == said(seed=5) != said(seed=6)
    assert said() != said()
    # With top-k or with top-p, each of 60 tokens is among the most probable.
    with torch.no_grad():
        most = model(torch.tensor([TOKENIZER.encode("A")]))[0, -1].softmax(-1).sort(descending=True)
    n_likely = int((most.values.cumsum(0) < 0.5).sum()) + 1
    for rule, n_kept in (({"topK": 3}, 3), ({"topP": 0.5}, n_likely)):
        drawn = {said(**rule, temperature=1, maxNewTokens=1, seed=i)["ids"][0] for i in range(60)}
        assert drawn == {*most.indices[:n_kept].tolist()}

    messages = [{"role": "user", "content": "the hat?"}]
    ids = chat_encoder_of(TOKENIZER).prompt(messages)
    script = """await (async () => {
      const all = [];
      const options = {temperature: 0, max_tokens: 9};
      for await (const piece of engine.generate({messages: arguments[0]}, options)) all.push(piece);
      return all;
    })()"""
    pieces = [piece for piece in awaited(browser, script, messages) if piece["ids"]]
    expected = ids_of(model.double(), [ids], 9)
    assert [i for piece in pieces for i in piece["ids"]] == expected
    with torch.no_grad():
        of_first = model(torch.tensor([ids]))[0, -1].log_softmax(-1).topk(10)
    likeliest = pieces[0]["tokens"][0]["likeliest"]
    assert [text for text, _ in likeliest] == [
        TOKENIZER.decode([i]) for i in of_first.indices.tolist()
    ]
    assert [value for _, value in likeliest] == pytest.approx(of_first.values.tolist(), abs=1e-4)

    # An answer that is continued starts where its text ends.
    begun = [*messages, {"role": "assistant", "content": "in the"}]
    pieces = awaited(browser, script, begun)
    ids += TOKENIZER.encode(" in the")
    assert [i for piece in pieces for i in piece["ids"]] == ids_of(model, [ids], 41 - len(ids))[:9]
    with pytest.raises(ValueError, match="context_length_exceeded"):
        awaited(browser, script, [{"role": "user", "content": "the hat " * 9}])

    weights = awaited(
        browser, "(await engine.attention({prompt: arguments[0]})).weights", "the cat"
    )
    with torch.no_grad():
        tokens = torch.tensor([TOKENIZER.encode("the cat")])
        expected = model.attention_weights(tokens, range(model.config.n_layers))[:, 0]
    assert torch.tensor(weights).double().sub(expected).abs().max() < 6e-4  # three decimals


def test_names_and_tokens_are_text_and_the_page_asks_nobody(browser, tmp_path):
    hostile = CharTokenizer("".join(sorted({*HOSTILE})), end_of_text=True)
    model = made(GPT2, vocab_size=hostile.n_vocab)
    opened(browser, model, tmp_path, tokenizer=hostile, name=HOSTILE)
    result = awaited(browser, "await gptmini.generate(...arguments)", HOSTILE, {"temperature": 0})
    assert result["text"]
    assert awaited(browser, "(await engine.describe()).model") == HOSTILE
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []

    with pytest.raises(ValueError, match="fetch"):
        awaited(browser, "await fetch('data:,a')")


def tokenizers_of_all_kinds():
    text = WORDS * 3 + CHINESE
    yield (
        "char",
        with_chat_template(
            CharTokenizer("".join(sorted({*text, *"User:Assistant\n"})), end_of_text=True)
        ),
    )
    yield "byte", with_chat_template(byte([]))
    yield "bpe", with_chat_template(bpe(documents_of([text]), vocab_size=400))
    chatml = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    chatml += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    special = ["<s>", "<|im_start|>", "<|im_end|>"]
    made = learned(text, special=special, steps=[pre_tokenizers.Digits(individual_digits=True)])
    yield (
        "library",
        LibraryTokenizer(made.to_str(), n_vocab=300, end_of_text=2, chat={"chat_template": chatml}),
    )


def test_texts_and_chats_get_the_same_ids(browser):
    browser.get("about:blank")
    source = files("gptmini.page").joinpath("tokenizer.js").read_text(encoding="utf-8")
    script = (
        source
        + """
        const made = new Tokenizer(arguments[0]);
        return [arguments[1].map((text) => made.encode(text)), arguments[2].map((chat) => made.chatIds(chat))];
    """
    )
    rng = random.Random(1)
    parts = [
        *WORDS,
        *"  \n\n\t'",
        "'s",
        "'ll",
        "12",
        "<|im_end|>",
        "<|endoftext|>",
        "the ",
        *CHINESE[:9],
    ]
    for name, tokenizer in tokenizers_of_all_kinds():
        known = parts
        if name == "char":
            known = [part for part in parts if {*part} <= {*tokenizer.characters}]

        texts = ["", WORDS, CHINESE, *("".join(rng.choices(known, k=20)) for _ in range(300))]
        chats = []
        for n_turns in range(30):
            roles = ["system"] * (n_turns % 2) + ["user", "assistant"] * (n_turns % 3) + ["user"]
            chats.append(
                [{"role": role, "content": "".join(rng.choices(known, k=6))} for role in roles]
            )
        if name != "char":
            chats.append([{"role": "user", "content": "constructor"}])
        settings = tokenizer_settings(tokenizer)
        of_texts, of_chats = browser.execute_script(script, settings, texts, chats)
        assert of_texts == [tokenizer.encode(each) for each in texts], name
        encoder = chat_encoder_of(tokenizer)
        assert of_chats == [encoder.prompt(chat) for chat in chats], name


@pytest.mark.parametrize("part", ["model", "normalizer", "pre_tokenizer", "added"])
def test_other_tokenizers_are_refused_by_the_part_that_differs(tmp_path, part):
    tree = json.loads(learned(WORDS, special=["<s>"]).to_str())
    if part == "normalizer":
        tree["normalizer"] = {"type": "NFKC"}
    elif part == "pre_tokenizer":
        tree["pre_tokenizer"] = {"type": "Whitespace"}
    elif part == "added":
        tree["added_tokens"].append(
            tree["added_tokens"][0] | {"id": 300, "content": "<x>", "special": False}
        )
    else:
        tree = json.loads(of_sentence_piece().to_str())
    tokenizer = LibraryTokenizer(json.dumps(tree), n_vocab=400, end_of_text=0)
    out = tmp_path / "model.html"
    with pytest.raises(UserError, match=part):
        write_page(out, made(GPT2, vocab_size=400), tokenizer, name="", dtype="int8", defaults={})
    assert not out.exists()
