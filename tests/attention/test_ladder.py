"""Each rung of the ladder equals the next one if both apply, and the last rung equals the module of the GPT."""

import pytest
import torch
from torch import nn

from gptmini.attention.teaching import (
    CausalAttention,
    CausalMultiHeadAttention,
    CrossAttention,
    LinearSelfAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttention,
    SelfAttentionWrapper,
    SeparateWidthAttention,
)
from sizes import B, D, S, T

H = 3  # heads; few, because some rungs have one module per head
C = H * D
CONTEXT = (
    6  # longest input of the causal rungs; longer than T, so that only a part of the mask is used
)

MAKE = {
    "SelfAttention": lambda dropout=0.0: SelfAttention(C, 4, 8),
    "LinearSelfAttention": lambda dropout=0.0: LinearSelfAttention(C, 8, qkv_bias=True),
    "SelfAttentionWrapper": lambda dropout=0.0: SelfAttentionWrapper(C, 4, 8, num_heads=H),
    "CausalAttention": lambda dropout=0.0: CausalAttention(C, 8, CONTEXT, dropout),
    "MultiHeadAttentionWrapper": lambda dropout=0.0: MultiHeadAttentionWrapper(
        C, 8, CONTEXT, dropout, num_heads=H
    ),
    "MultiHeadAttention": lambda dropout=0.0: MultiHeadAttention(
        C, 9, CONTEXT, dropout, num_heads=H, qkv_bias=True
    ),
    "SeparateWidthAttention": lambda dropout=0.0: SeparateWidthAttention(H, C, 4, 8),
    "CrossAttention": lambda dropout=0.0: CrossAttention(C, 4, 8),
}
CONTEXT_BOUND = ["CausalAttention", "MultiHeadAttentionWrapper", "MultiHeadAttention"]


def make(name, dropout=0.0):
    torch.manual_seed(0)
    return MAKE[name](dropout)


def inputs(name, *batch):
    """Return the arguments of forward: one sequence, and for some rungs a second with another length."""
    torch.manual_seed(1)
    x = torch.randn(*batch, T, C)
    second = torch.randn(*batch, S, C)
    if name == "SeparateWidthAttention":
        return x, second, second
    if name == "CrossAttention":
        return x, second
    return (x,)


def copy(target, source):
    with torch.no_grad():
        target.copy_(source)


def test_parameters_equal_linear():
    matrices = SelfAttention(C, 8)
    linear = LinearSelfAttention(C, 8)
    (x,) = inputs("SelfAttention", B)

    for name in ("W_query", "W_key", "W_value"):
        copy(getattr(linear, name).weight, getattr(matrices, name).T)

    torch.testing.assert_close(linear(x), matrices(x))


def test_a_causal_row_is_the_last_row_of_self_attention_over_its_prefix():
    causal = make("CausalAttention")
    free = LinearSelfAttention(C, 8)
    (x,) = inputs("CausalAttention", B)
    free.load_state_dict(causal.state_dict())
    for t in range(1, T + 1):
        torch.testing.assert_close(causal(x)[:, t - 1], free(x[:, :t])[:, -1])


def test_wrappers_are_their_heads_side_by_side():
    for name in ("SelfAttentionWrapper", "MultiHeadAttentionWrapper"):
        wrapper = make(name)
        (x,) = inputs(name, B)
        expected = torch.cat([head(x) for head in wrapper.heads], dim=-1)
        torch.testing.assert_close(wrapper(x), expected)


def test_wrapper_equals_split_with_an_identity_output_projection():
    wrapper = MultiHeadAttentionWrapper(C, D, CONTEXT, 0.0, num_heads=H, qkv_bias=True)
    split = MultiHeadAttention(C, C, CONTEXT, 0.0, num_heads=H, qkv_bias=True)
    (x,) = inputs("MultiHeadAttention", B)

    for name in ("W_query", "W_key", "W_value"):
        projections = [getattr(head, name) for head in wrapper.heads]
        copy(getattr(split, name).weight, torch.cat([p.weight for p in projections]))
        copy(getattr(split, name).bias, torch.cat([p.bias for p in projections]))
    copy(split.out_proj.weight, torch.eye(C))
    copy(split.out_proj.bias, torch.zeros(C))

    torch.testing.assert_close(split(x), wrapper(x))
    torch.testing.assert_close(split.attention_weights(x), wrapper.attention_weights(x))


def test_separate_widths_at_equal_widths_equal_torch_multihead_attention():
    ours = SeparateWidthAttention(H, C, D, D)
    theirs = nn.MultiheadAttention(C, H, batch_first=True)

    for i, name in enumerate(("query", "key", "value")):
        rows = slice(i * C, (i + 1) * C)
        copy(theirs.in_proj_weight[rows], torch.cat([head[name].weight for head in ours.heads]))
        copy(theirs.in_proj_bias[rows], torch.cat([head[name].bias for head in ours.heads]))
    theirs.out_proj.load_state_dict(ours.out_proj.state_dict())
    query, key, _ = inputs("SeparateWidthAttention", B)
    value = torch.randn_like(key)
    expected, weights = theirs(query, key, value, average_attn_weights=False)

    torch.testing.assert_close(ours(query, key, value), expected)
    torch.testing.assert_close(ours.attention_weights(query, key), weights)


def test_cross_attention_on_itself_equals_self_attention():
    cross = make("CrossAttention")
    own = SelfAttention(C, 4, 8)
    (x,) = inputs("SelfAttention", B)
    own.load_state_dict(cross.state_dict())
    assert torch.equal(cross(x, x), own(x))


@pytest.mark.parametrize("qkv_bias", [False, True])
def test_split_equals_production(qkv_bias):
    split = MultiHeadAttention(C, C, CONTEXT, 0.0, num_heads=H, qkv_bias=qkv_bias)
    production = CausalMultiHeadAttention(C, H, bias=True)
    (x,) = inputs("MultiHeadAttention", B)

    projections = (split.W_query, split.W_key, split.W_value)
    copy(production.qkv.weight, torch.cat([p.weight for p in projections]))
    if qkv_bias:
        copy(production.qkv.bias, torch.cat([p.bias for p in projections]))
    else:
        copy(production.qkv.bias, torch.zeros(3 * C))
    production.output.load_state_dict(split.out_proj.state_dict())

    torch.testing.assert_close(production(x), split(x))
    torch.testing.assert_close(production.attention_weights(x), split.attention_weights(x))


@pytest.mark.parametrize("name", MAKE)
def test_any_number_of_leading_dimensions(name):
    module = make(name)
    arguments = inputs(name, 3, B)
    flat = module(*(x.flatten(0, 1) for x in arguments))
    torch.testing.assert_close(module(*arguments), flat.unflatten(0, (3, B)))
    torch.testing.assert_close(module(*(x[0, 0] for x in arguments)), flat[0])


@pytest.mark.parametrize("name", CONTEXT_BOUND)
def test_dropout_acts_in_training_only(name):
    module = make(name, dropout=0.25)
    plain = make(name)
    (x,) = inputs(name, B)
    assert not torch.equal(module(x), plain(x))
    assert torch.equal(module.eval()(x), plain.eval()(x))


@pytest.mark.parametrize("name", CONTEXT_BOUND)
def test_a_sequence_longer_than_the_context_is_refused(name):
    with pytest.raises(ValueError, match=f"context_length={CONTEXT} tokens, got 7"):
        make(name)(torch.randn(B, S, C))
