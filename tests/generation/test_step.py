"""One decoding step equals the model: in batches of different lengths, after a full cache, packed, and in bfloat16."""

import copy

import pytest
import torch

from generation.decoders import GROUPED, PRESETS, generate, make
from gptmini.evaluation import evaluate
from gptmini.generation import generate as generate_text
from gptmini.model import packed
from gptmini.model.step import DecodingStep
from gptmini.system.errors import UserError
from gptmini.tokenizer import CharTokenizer
from sizes import CONTEXT as T
from sizes import MODERN, V


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, {"attention_scale": 0.4}, {"qk_norm": True, "n_kv_heads": 2}]
)
@pytest.mark.parametrize("is_packed", [False, True])
@PRESETS
@torch.inference_mode()
def test_a_decoding_step_equals_the_model_in_float32_also_ragged_and_after_a_slide(
    preset, changes, is_packed, monkeypatch
):
    plain = make(preset, **changes).float()
    model = copy.deepcopy(plain)
    if is_packed:
        monkeypatch.setattr(packed, "LARGE", 0)
        assert packed.pack(model) is model
        if packed._is_computed_by_onednn(torch.float32):
            assert isinstance(model.blocks[0].mlp.input, packed.PackedLinear)
    texts = []
    for row in range(3):
        generator = torch.Generator().manual_seed(row)
        texts.append(torch.randint(V, (30,), generator=generator).tolist())

    # The window of a row is texts[row][firsts[row] : ends[row]].
    cache = model.new_cache(3)
    step = DecodingStep(model, cache)
    firsts = [0, 0, 0]
    ends = [5, 1, 9]

    def encode(row):
        """Encode the window of one row into the cache."""
        own = model.new_cache(1)
        known = texts[row][firsts[row] : ends[row]]
        model.hidden(torch.tensor([known]), own)
        cache.fill([row], own, len(known))

    for row in range(3):
        encode(row)
    cache.slots.set_lengths(ends)

    for _ in range(20):
        # A full window shrinks to its newer half.
        full = [row for row in range(3) if ends[row] - firsts[row] == T]
        for row in full:
            firsts[row] = ends[row] - T // 2
            encode(row)
        if full:
            cache.slots.set_lengths([end - first for first, end in zip(firsts, ends, strict=True)])

        logits = step(torch.tensor([text[end] for text, end in zip(texts, ends, strict=True)]))
        ends = [end + 1 for end in ends]

        for row in range(3):
            expected = plain(torch.tensor([texts[row][firsts[row] : ends[row]]]))[0, -1]
            torch.testing.assert_close(logits[row], expected, atol=1e-5, rtol=1e-5)

    assert min(firsts) > 0


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_rotary_model_in_bfloat16_is_decoded_in_it(is_packed, monkeypatch):
    model = make(MODERN | GROUPED).bfloat16()
    model.rotary_cos = model.rotary_cos.float()
    model.rotary_sin = model.rotary_sin.float()
    if is_packed:
        monkeypatch.setattr(packed, "LARGE", 0)
        packed.pack(model)
    assert all(len(ids) == 20 for ids in generate(model, n_tokens=20))


@pytest.mark.skipif(
    not packed._is_computed_by_onednn(torch.float32), reason="oneDNN packs on x86-64 alone"
)
@PRESETS
def test_a_packed_model_scores_as_the_plain_one_and_is_not_compiled(preset, monkeypatch):
    plain = make(preset).float()
    model = copy.deepcopy(plain)
    monkeypatch.setattr(packed, "LARGE", 0)
    packed.pack(model)

    tokens = torch.randint(V, (2, 5), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(tokens), plain(tokens), atol=1e-5, rtol=1e-5)
    batches = [(tokens, tokens.roll(1, dims=1))]
    found = evaluate(model, batches, tokens_per_byte=1.0)
    assert found.loss == pytest.approx(evaluate(plain, batches, tokens_per_byte=1.0).loss, rel=1e-5)

    with pytest.raises(UserError, match="packed"):
        generate_text(model, CharTokenizer("abcdefghijk", end_of_text=False), "a", compile=True)
