"""CausalMultiHeadAttention equals the plain formula and torch's modules, and has the expected properties."""

import math

import pytest
import torch
from torch.nn import functional as F

from gptmini.attention import (
    CausalMultiHeadAttention,
    KVCache,
    Rotary,
    Slots,
    attention,
    causal_mask,
    rotary_table,
    rotate,
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


def test_formula_gives_hand_computed_numbers():
    queries = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])  # (H=1, T=2, D=2)
    keys = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    values = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    # Row 2: scores (0, 2) / sqrt(2), so weights 1 / (1 + e^sqrt(2)) = 0.195570 and 0.804430.
    expected = torch.tensor([[[1.0, 0.0], [0.195570, 0.804430]]])

    got = attention(queries, keys, values, mask=causal_mask(2, 2))
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)


def test_mask_is_aligned_to_the_newest_position():
    expected = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    assert torch.equal(causal_mask(3, 5), expected)


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


@pytest.mark.parametrize("options", VARIANTS)
def test_changing_a_future_token_leaves_earlier_outputs_unchanged(options):
    module = make(**options)
    x = torch.randn(B, T, C)
    changed = x.clone()
    changed[:, 3:] += 1

    assert torch.equal(module(x)[:, :3], module(changed)[:, :3])
    assert not torch.equal(module(x)[:, 3:], module(changed)[:, 3:])


@pytest.mark.parametrize("chunks", [(5,), (1, 1, 1, 1, 1), (2, 3), (3, 1, 1)])
@pytest.mark.parametrize("options", VARIANTS)
@torch.no_grad()
def test_cached_chunks_equal_one_pass(chunks, options):
    module = make(**options)
    x = torch.randn(B, T, C)
    table = rotary_table(T, D, 100.0)
    cache = KVCache(1, Slots(B, T), n_kv_heads=module.n_kv_heads, d_head=D)

    parts = []
    start = 0
    for length in chunks:
        rows = Rotary(*(part[start : start + length] for part in table))
        cache.slots.reserve(length)
        parts.append(module(x[:, start : start + length], rotary=rows, cache=cache.layers[0]))
        start += length

    whole = module(x, rotary=table)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("lengths", "n_held"), [([0, 0], 5), ([1, 3], 8)])
def test_full_cache_is_refused(lengths, n_held):
    slots = Slots(B, 4)
    slots.set_lengths(lengths)
    with pytest.raises(ValueError, match=f"a cache of 4 tokens cannot hold {n_held}"):
        slots.reserve(5)


def test_rotation_equals_multiplication_by_a_complex_phase():
    torch.manual_seed(0)
    x = torch.randn(B, T, H, D, dtype=torch.float64)
    rotated = rotate(x, Rotary(*(part.double() for part in rotary_table(T, D, 100.0))))

    frequencies = 100.0 ** -torch.tensor([0.0, 0.5]).double()
    phase = torch.outer(torch.arange(T).double(), frequencies)  # (T, D / 2)
    turned = torch.complex(x[..., :2], x[..., 2:]) * torch.exp(-1j * phase).unsqueeze(1)
    expected = torch.cat((turned.real, turned.imag), -1)  # (B, T, H, D)

    torch.testing.assert_close(rotated, expected, atol=1e-6, rtol=1e-6)


def lowered_as_in_llama_3(frequency, *, factor, low, high, length):
    """Scale one frequency, in radians per token, by its wavelength in tokens, like the code of Llama 3.1."""
    wave = 2 * math.pi / frequency
    if wave < length / high:
        return frequency
    if wave > length / low:
        return frequency / factor
    smooth = (length / wave - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


def test_a_lengthened_context_turns_more_slowly_as_llama_3_does():
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_context_length": 300,
    }
    plain = [500.0 ** (-i / 5) for i in range(5)]
    expected = []
    for frequency in plain:
        expected.append(lowered_as_in_llama_3(frequency, factor=8.0, low=1.0, high=4.0, length=300))

    # The first two pairs keep their frequency, the last pair is divided, and the two between are interpolated.
    assert expected[:2] == plain[:2]
    assert plain[2] / 8 < expected[2] < plain[2]
    assert plain[3] / 8 < expected[3] < plain[3]
    assert expected[4] == plain[4] / 8

    angles = rotary_table(2, 10, 500.0, scaling).sin[1].asin()  # angles of position 1, in radians
    assert angles.tolist() == pytest.approx(expected, rel=1e-5)

    divided = rotary_table(2, 10, 500.0, {"factor": 3.0}).sin[1].asin()
    assert divided.tolist() == pytest.approx([frequency / 3 for frequency in plain], rel=1e-5)


def test_dropout_acts_in_training_only():
    module = make(dropout=0.5)
    x = torch.randn(B, T, C)
    assert not torch.equal(module(x), module(x))

    module.eval()
    assert torch.equal(module(x), module(x))
    torch.testing.assert_close(module(x), make().eval()(x))


def test_gradients_pass_gradcheck():
    module = make(n_kv_heads=G, qk_norm=True).double()
    x = torch.randn(1, 3, C, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(module, (x,))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((100, 12), "d_model must be a multiple of n_heads, got d_model=100 and n_heads=12"),
        ((24, 6, 4), "n_heads must be a multiple of n_kv_heads, got n_heads=6 and n_kv_heads=4"),
    ],
)
def test_heads_that_do_not_divide_are_refused(arguments, message):
    d_model, n_heads, *kv = arguments
    with pytest.raises(ValueError, match=message):
        CausalMultiHeadAttention(d_model, n_heads, n_kv_heads=kv[0] if kv else None)


def test_wrong_width_is_named_with_both_shapes():
    with pytest.raises(ValueError, match=r"x must be \(B, T, C=24\), got \(2, 5, 23\)"):
        make()(torch.randn(B, T, 23))
