"""The decoding loop equals an oracle without a cache, and text comes out in whole characters."""

import pytest
import torch

from gptmini.generation import TextStream, choose, generate_stream, prompt_ids, sample_generator
from gptmini.model import GPTConfig, new_gpt
from gptmini.tokenizer import CharTokenizer, byte

V, T = 11, 13
SIZES = {"vocab_size": V, "context_length": T, "d_model": 24, "n_layers": 2, "n_heads": 6}
GPT2 = SIZES | {
    "norm": "layernorm",
    "position": "learned",
    "mlp": "gelu",
    "bias": True,
    "tie_embeddings": True,
    "init": "gpt2",
}
MODERN = SIZES | {
    "norm": "rmsnorm",
    "position": "rotary",
    "rotary_base": 100.0,
    "mlp": "relu2",
    "bias": False,
    "n_kv_heads": 3,
    "qk_norm": True,
    "embedding_norm": True,
    "tie_embeddings": False,
    "logit_softcap": 15.0,
    "init": "zero_projections",
}
SMEARED = MODERN | {"smear": 3, "mlp_smear": 2}
PRESETS = pytest.mark.parametrize("preset", [GPT2, MODERN, SMEARED], ids=["gpt2", "modern", "smeared"])
PROMPT = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3], [5, 8, 9, 7, 10]])


def make(preset=GPT2, **changes):
    """Float64, so that no near tie turns on rounding; weights so wide that every part shows."""
    model = new_gpt(GPTConfig(**preset | changes), seed=0).double().eval()
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 or "smear" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def generate(model, prompt=PROMPT, **options):
    return torch.stack(list(generate_stream(model, prompt, **options)), dim=1)  # (B, new)


@torch.no_grad()
def oracle(model, prompt, n_tokens, pick):
    """Every step recomputes the whole window; a window that is full shrinks to its newest half first."""
    window, drawn = prompt[:, -model.config.context_length :], []
    for _ in range(n_tokens):
        if window.size(1) > model.config.context_length:
            window = window[:, -max(1, model.config.context_length // 2) :]
        drawn.append(pick(model(window)[:, -1]))
        window = torch.cat((window, drawn[-1].unsqueeze(1)), dim=1)
    return torch.stack(drawn, dim=1)


@pytest.mark.parametrize("context_length", [13, 2, 1])
@PRESETS
def test_greedy_decoding_equals_recomputing_the_window_also_past_the_context(preset, context_length):
    model = make(preset, context_length=context_length)
    expected = oracle(model, PROMPT, 40, lambda logits: logits.argmax(-1))
    assert len(expected.unique()) > min(2, context_length)
    assert torch.equal(generate(model, max_new_tokens=40, temperature=0), expected)


@PRESETS
def test_sampling_equals_recomputing_the_window(preset):
    model = make(preset)
    generators = [sample_generator(7, 4 + row) for row in range(3)]
    rules = {"temperature": 1.5, "top_k": 8, "top_p": 0.95}

    def pick(logits):
        uniform = torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in generators])
        return choose(logits, uniform, **rules)

    expected = oracle(model, PROMPT, 40, pick)
    assert torch.equal(generate(model, max_new_tokens=40, seed=7, first_sample=4, **rules), expected)


def test_a_seed_fixes_the_samples_and_samples_differ():
    model, same_prompt = make(), PROMPT[:1].expand(3, -1)
    before = torch.get_rng_state()
    first = generate(model, same_prompt, max_new_tokens=20, seed=1)
    torch.rand(3)
    assert torch.equal(generate(model, same_prompt, max_new_tokens=20, seed=1), first)
    assert len({tuple(row) for row in first.tolist()}) == 3
    assert not torch.equal(generate(model, same_prompt, max_new_tokens=20, seed=2), first)
    torch.set_rng_state(before)
    generate(model, max_new_tokens=2)
    assert torch.equal(torch.get_rng_state(), before)


@PRESETS
def test_a_sample_is_the_same_alone_and_in_a_batch(preset):
    model = make(preset)
    together = generate(model, max_new_tokens=20, seed=5)
    for row in range(3):
        alone = generate(model, PROMPT[row : row + 1], max_new_tokens=20, seed=5, first_sample=row)
        assert torch.equal(alone[0], together[row])


def test_of_a_long_prompt_the_newest_context_length_tokens_are_seen():
    model, long = make(), torch.randint(V, (3, 30), generator=torch.Generator().manual_seed(0))
    expected = generate(model, long[:, -T:], max_new_tokens=9, temperature=0)
    assert torch.equal(generate(model, long, max_new_tokens=9, temperature=0), expected)
    assert not torch.equal(generate(model, long[:, 1 - T :], max_new_tokens=9, temperature=0), expected)


@pytest.mark.parametrize("n_rows", [1, 3])
def test_end_of_text_stops_when_every_row_has_drawn_it(n_rows):
    model, options = make(), {"max_new_tokens": 60, "seed": 3, "temperature": 2.0}
    endless = generate(model, PROMPT[:n_rows], **options)
    assert endless.shape == (n_rows, 60)
    ends = [i for i in range(V) if (endless == i).any(1).all()]  # tokens that every row draws
    assert ends
    for end in ends:
        needed = max(row.index(end) + 1 for row in endless.tolist())
        assert torch.equal(generate(model, PROMPT[:n_rows], end_of_text=end, **options), endless[:, :needed])


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_in_its_mode_and_drops_nothing(training):
    expected = generate(make(), max_new_tokens=20, temperature=0)
    model = make(dropout=0.5).train(training)
    assert len(list(generate_stream(model, PROMPT, max_new_tokens=20, temperature=0))) == 20
    assert model.training == training
    stream = generate_stream(model, PROMPT, max_new_tokens=20, temperature=0)
    next(stream)
    stream.close()
    assert model.training == training
    assert torch.equal(generate(model, max_new_tokens=20, temperature=0), expected)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("shape", [(1, 0), (0, 5), (5,)])
def test_an_empty_prompt_is_refused(shape):
    with pytest.raises(ValueError, match=r"prompt must be \(B, T\) with at least one token, got \("):
        list(generate_stream(make(), torch.zeros(shape, dtype=torch.int64), max_new_tokens=1))


@pytest.mark.parametrize(("name", "value"), [("max_new_tokens", 0), ("temperature", -1), ("top_k", 0), ("top_p", 2.0)])
def test_arguments_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be"):
        list(generate_stream(make(), PROMPT, **{"max_new_tokens": 1, name: value}))


def test_an_empty_prompt_text_becomes_what_starts_a_document():
    assert prompt_ids(byte([], []), "") == [256]
    assert prompt_ids(CharTokenizer("abc", end_of_text=False), "") == [0]
    assert prompt_ids(CharTokenizer("abc", end_of_text=True), "") == [3]
    assert prompt_ids(CharTokenizer("abc", end_of_text=True), "cab") == [2, 0, 1]


def stream(tokenizer, ids):
    text = TextStream(tokenizer)
    return [text.push(i) for i in ids], text.finish()


@pytest.mark.parametrize("text", ["plain", "né à 3 €", "漢字", "😀👍🏽 x 🇨🇭", "aé€😀" * 5])
def test_text_comes_in_whole_characters(text):
    tokenizer = byte([], [])
    pieces, rest = stream(tokenizer, tokenizer.encode(text))
    assert [piece for piece in pieces if piece] == list(text)  # each with its last byte
    assert rest == ""


def test_a_character_cut_off_at_the_end_comes_with_finish():
    pieces, rest = stream(byte([], []), "a€".encode()[:-1])
    assert pieces == ["a", "", ""]
    assert rest == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("ids", [[0xFF] * 9, [0x80, 0x81] * 5, [0xF0] * 6, [300] * 7])
def test_invalid_bytes_do_not_stall_the_text(ids):
    tokenizer = byte([], [])
    pieces, rest = stream(tokenizer, [*ids, *b"ok"])
    assert "".join(pieces[: len(ids)]).count("\N{REPLACEMENT CHARACTER}") >= len(ids) - 3  # 3 bytes may be held back
    assert "".join(pieces) + rest == tokenizer.decode([*ids, *b"ok"])
    assert rest == ""


def test_a_tokenizer_of_characters_streams_each_at_once():
    assert stream(CharTokenizer("a€😀", end_of_text=True), [2, 0, 3, 1]) == (["😀", "a", "<|endoftext|>", "€"], "")


@pytest.mark.parametrize("before", [b"\xff", b"\x80\x80", "\N{REPLACEMENT CHARACTER}".encode(), b"\xf0\x9f"])
@pytest.mark.parametrize("character", ["é", "€", "😀"])
def test_a_character_after_invalid_bytes_is_whole(before, character):
    tokenizer = byte([], [])
    ids = [*before, *character.encode(), *b"ok"]
    pieces, rest = stream(tokenizer, ids)
    assert "".join(pieces) + rest == tokenizer.decode(ids)


def test_any_bytes_stream_to_what_they_decode_to():
    tokenizer, generator = byte([], []), torch.Generator().manual_seed(0)
    for _ in range(300):
        ids = torch.randint(0x70, 256, (23,), generator=generator).tolist()
        pieces, rest = stream(tokenizer, ids)
        assert "".join(pieces) + rest == tokenizer.decode(ids)
