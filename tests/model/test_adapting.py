"""A trained GPT starts another run with other settings, a shorter context, or frozen weights."""

import pytest
import torch

from gptmini.model import GPTConfig
from gptmini.model.adapting import adapt, freeze
from gptmini.system.errors import UserError
from sizes import CONTEXT, GPT2, MODERN, PRESETS, B, C, T, V
from toys import wide_gpt


@PRESETS
def test_a_shorter_context_changes_no_logit_within_it(preset):
    model = wide_gpt(preset).eval()
    shorter = adapt(model, GPTConfig(**preset | {"context_length": T, "dropout": 0.3})).eval()
    assert shorter.config.context_length == T
    tokens = torch.randint(V, (B, T))
    with torch.no_grad():
        assert torch.equal(shorter(tokens), model(tokens))


def test_rotary_weights_that_are_trained_on_a_shorter_context_keep_their_positions():
    model = wide_gpt(MODERN).eval()
    lengths = {"context_length": T, "full_context_length": CONTEXT}
    shorter = adapt(model, GPTConfig(**MODERN | lengths)).eval()
    tokens = torch.randint(V, (B, CONTEXT))
    with torch.no_grad():
        assert torch.equal(shorter(tokens), model(tokens))
        by_cache = shorter(tokens, shorter.new_cache(B))
        torch.testing.assert_close(by_cache, model(tokens), atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="at most 13 tokens, got 14"):
        shorter(torch.zeros(1, CONTEXT + 1, dtype=torch.int64))


def test_half_precision_becomes_float32():
    model = wide_gpt(MODERN).bfloat16()
    assert {weight.dtype for weight in adapt(model, model.config).parameters()} == {torch.float32}


def frozen_names(model):
    return {name for name, weight in model.named_parameters() if not weight.requires_grad}


@pytest.mark.parametrize(
    ("prefixes", "expected"),
    [
        (["embedding"], {"embedding.weight"}),
        (["blocks.0.mlp"], {"blocks.0.mlp.input.weight", "blocks.0.mlp.output.weight"}),
        (["unembedding", "embedding"], {"embedding.weight", "unembedding.weight"}),
        (["blocks.0-1.mlp.output"], {"blocks.0.mlp.output.weight", "blocks.1.mlp.output.weight"}),
        ([], set()),
    ],
)
def test_weights_are_frozen_by_the_beginnings_of_their_names(prefixes, expected):
    model = wide_gpt(MODERN | {"n_layers": 3})
    freeze(model, prefixes)
    assert frozen_names(model) == expected

    # The padding rows of the vocabulary do not count.
    counted = {name: model.get_parameter(name).numel() for name in expected}
    for name in ("embedding.weight", "unembedding.weight"):
        if name in counted:
            counted[name] = V * C
    assert model.count_parameters(expected) == sum(counted.values())


@pytest.mark.parametrize(
    ("preset", "prefix", "said"),
    [
        (MODERN, "embeding", "freeze=embeding .* embedding"),
        (MODERN, "blocks.2", r"freeze=blocks\.2 .* blocks\.1"),
        (GPT2, "unembedding", "freeze=unembedding .* embedding"),
    ],
)
def test_a_name_that_no_weight_has_is_refused_with_the_nearest(preset, prefix, said):
    model = wide_gpt(preset)
    with pytest.raises(UserError, match=said):
        freeze(model, [prefix])
    assert not frozen_names(model)
