"""The entire model: its initial weights, that it learns, which tokens it sees, and its counts."""

import math

import pytest
import torch

from gptmini.model import GPT, GPTConfig, new_gpt, next_token_loss
from model.tiny import GROUPED, B, draw, make, wide
from sizes import CONTEXT as T
from sizes import GPT2, MODERN, PRESETS, C, D, F, G, H, N, V


@PRESETS
def test_loss_at_step_0_is_near_log_of_the_vocabulary(preset):
    tokens = draw(batch_size=50)
    loss = next_token_loss(make(preset)(tokens[:, :-1]), tokens[:, 1:]).item()

    # GPT-2's logits are sums of 24 products of about 1 * 0.02: a standard deviation of 0.1. Modern's head is zero.
    assert loss == pytest.approx(math.log(V), abs=0.03 if preset is GPT2 else 1e-6)


def test_gpt2_starts_with_the_published_deviations():
    model = make(GPT2, d_model=96, n_layers=3)
    residual = 0.02 / math.sqrt(2 * 3)

    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            is_gain = "norm" in name and name.endswith("weight")
            assert (parameter == (1 if is_gain else 0)).all(), name
            continue

        # The tolerances are four standard errors of the mean and of the standard deviation of n numbers.
        std = residual if name.endswith("output.weight") else 0.02
        n = parameter.numel()
        assert parameter.mean().item() == pytest.approx(0, abs=4 * std / math.sqrt(n)), name
        assert parameter.std().item() == pytest.approx(std, abs=4 * std / math.sqrt(2 * n)), name


def test_modern_starts_every_block_as_the_identity():
    model = make(MODERN, n_layers=3)
    tokens = draw()
    embedded = torch.nn.functional.rms_norm(model.embedding(tokens), (C,), eps=1e-6)

    for block in model.blocks:
        assert not block.attention.output.weight.any()
        assert not block.mlp.output.weight.any()
        assert block.attention.qkv.weight.std().item() == pytest.approx(C**-0.5, rel=0.1)
        assert block.mlp.input.weight.std().item() == pytest.approx(C**-0.5, rel=0.1)

    torch.testing.assert_close(model.hidden(tokens), embedded, atol=1e-5, rtol=0)
    assert not model.unembedding.weight.any()


@PRESETS
@pytest.mark.parametrize(("vocab_size", "padded"), [(1, 64), (11, 64), (64, 64), (65, 128)])
def test_vocabulary_is_padded_inside_and_never_seen_outside(preset, vocab_size, padded):
    model = make(preset, vocab_size=vocab_size)
    tokens = draw() % vocab_size

    assert model.embedding.weight.shape == (padded, C)
    if not model.config.tie_embeddings:
        assert model.unembedding.weight.shape == (padded, C)
    assert model(tokens).shape == (B, T, vocab_size)
    assert model.hidden(tokens).shape == (B, T, C)


@pytest.mark.parametrize(("n_kv_heads", "groups"), [(None, H), (G, G)])
def test_parameters_equal_the_hand_count(n_kv_heads, groups):
    projections = C * (H + 2 * groups) * D + C * C + C * F + F * C
    biases = (H + 2 * groups) * D + C + F + C
    norm = 2 * C  # gain and bias of a layer norm
    gpt2 = V * C + T * C + N * (projections + biases + 2 * norm) + norm
    modern = 2 * V * C + N * projections

    assert make(GPT2, d_ff=F, n_kv_heads=n_kv_heads).n_parameters == gpt2
    assert make(MODERN, d_ff=F, n_kv_heads=n_kv_heads).n_parameters == modern


def test_gpt2_small_has_its_published_size():
    sizes = {
        "vocab_size": 50257,
        "context_length": 1024,
        "d_model": 768,
        "n_layers": 12,
        "n_heads": 12,
    }
    with torch.device("meta"):
        model = GPT(GPTConfig(**GPT2 | sizes))

    assert model.n_parameters == 124_439_808
    # 12 * 12 * 768^2 in the blocks and 50257 * 768 in the head, times 6; then 12 * 12 * 768 * 1024.
    assert model.flops_per_token == 6 * (84_934_656 + 38_597_376) + 113_246_208


@GROUPED
@PRESETS
def test_changing_a_future_token_leaves_earlier_logits_unchanged(preset, n_kv_heads):
    model = wide(preset, n_kv_heads=n_kv_heads)
    tokens = draw()
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % V
    before = model(tokens)
    after = model(changed)

    assert torch.equal(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any(-1).all()  # every later position sees the change


@PRESETS
def test_first_weights_follow_from_the_seed_alone(preset):
    config = GPTConfig(**preset)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = new_gpt(config, seed=7)
    assert torch.equal(torch.get_rng_state(), before)

    torch.manual_seed(4)
    again = new_gpt(config, seed=7)
    other = new_gpt(config, seed=8)
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name
    assert not torch.equal(first.embedding.weight, other.embedding.weight)
