"""CausalMultiHeadAttention equals the plain formula and torch's modules, and has the expected properties."""

import pytest
import torch
from torch.nn import functional as F

from gptmini.attention import (
    CausalMultiHeadAttention,
    Slots,
    attention,
    causal_mask,
    rotary_table,
)
from sizes import B, C, D, G, H, S, T


def make(**options):
    torch.manual_seed(0)
    return CausalMultiHeadAttention(C, H, **options)


VARIANTS = [
    {},
    {"bias": True},
    {"n_kv_heads": G},
    {"n_kv_heads": 1},
    {"qk_norm": True},
    {"scale": 0.3},
    {"n_kv_heads": G, "qk_norm": True, "bias": True, "scale": 1.44},
]


def test_formula_equals_scaled_dot_product_attention_with_the_same_mask():
    torch.manual_seed(0)
    queries = torch.randn(B, H, T, D)
    keys = torch.randn(B, G, S, D)
    values = torch.randn(B, G, S, D)
    mask = causal_mask(T, S)
    expected = F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, scale=0.7, enable_gqa=True
    )

    torch.testing.assert_close(attention(queries, keys, values, mask=mask, scale=0.7), expected)


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("with_rotary", [False, True])
def test_forward_equals_weights_of_the_formula_times_values(options, with_rotary):
    module = make(**options)
    x = torch.randn(B, T, C)
    rotary = rotary_table(T, D, 100.0) if with_rotary else None

    n_kv_heads = module.n_kv_heads
    values = module.qkv(x)[..., -n_kv_heads * D :]  # (B, T, G * D)
    values = values.unflatten(-1, (n_kv_heads, D)).transpose(1, 2)  # (B, G, T, D)
    values = values.repeat_interleave(H // n_kv_heads, dim=1)  # (B, H, T, D)
    context = module.attention_weights(x, rotary=rotary) @ values
    expected = module.output(context.transpose(1, 2).flatten(-2))  # (B, T, C)

    torch.testing.assert_close(module(x, rotary=rotary), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_equals_torch_multihead_attention_with_a_causal_mask(bias):
    ours = make(bias=bias)
    x = torch.randn(B, T, C)
    theirs = torch.nn.MultiheadAttention(C, H, bias=bias, batch_first=True)

    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.qkv.weight)
        theirs.out_proj.weight.copy_(ours.output.weight)
        if bias:
            ours.output.bias.normal_()
            theirs.in_proj_bias.copy_(ours.qkv.bias)
            theirs.out_proj.bias.copy_(ours.output.bias)

    expected, weights = theirs(x, x, x, attn_mask=~causal_mask(T, T), average_attn_weights=False)
    torch.testing.assert_close(ours(x), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(ours.attention_weights(x), weights, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("lengths", "n_held"), [([0, 0], 5), ([1, 3], 8)])
def test_full_cache_is_refused(lengths, n_held):
    slots = Slots(B, 4)
    slots.set_lengths(lengths)
    with pytest.raises(ValueError, match=f"a cache of 4 tokens cannot hold {n_held}"):
        slots.reserve(5)
