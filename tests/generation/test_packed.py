"""A packed model decodes like the plain one, in float32 and in bfloat16."""

import copy

import pytest
import torch

from generation.decoders import GROUPED, PRESETS, generate, make
from gptmini.evaluation import evaluate
from gptmini.generation import generate as generate_text
from gptmini.model import packed
from gptmini.system.errors import UserError
from gptmini.tokenizer import CharTokenizer
from sizes import MODERN, V


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
