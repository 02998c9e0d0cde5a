"""A model in int8 computes with exactly the rounded weights that it stores."""

import copy

import pytest
import torch
from torch import nn

from generation.decoders import GROUPED, PRESETS, PROMPTS, generate, make
from gptmini.model import packed
from sizes import LLAMA

WIDE = {"d_model": 48}  # a multiple of what the kernel reads at a time


@pytest.fixture(autouse=True)
def every_matrix_is_large(monkeypatch):
    monkeypatch.setattr(packed, "LARGE", 0)


def dequantised(layer):
    """Return the weight (out, in) of a layer in int8, in float64."""
    return layer.weight.double() * layer.scale.double().unsqueeze(1)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(1,), (3,), (2, 4), (9,), (2, 20)])
def test_a_layer_multiplies_by_its_rounded_weights(shape, has_bias):
    torch.manual_seed(0)
    linear = nn.Linear(48, 30, bias=has_bias)
    linear.weight.data[7] = 0
    layer = packed.Int8Linear(linear.weight, linear.bias)

    weight = linear.weight.double()
    steps = weight.abs().amax(dim=1) / 127
    torch.testing.assert_close(layer.scale.double(), steps, rtol=2**-8, atol=1e-30)
    assert set(layer.weight.abs().amax(dim=1).tolist()) == {0, 127}
    rounding = (dequantised(layer) - weight).abs()
    assert (rounding <= layer.scale.double().unsqueeze(1) * 0.7).all()  # half a step, and bf16's
    assert rounding.mean() < 0.3 * steps.mean()  # the mean of a uniform rounding is 0.25 steps

    x = torch.randn(*shape, 48).bfloat16()
    product = x.double() @ dequantised(layer).T
    bias = linear.bias.double() if has_bias else torch.zeros(30).double()
    error = (layer(x).double() - (product + bias)).abs()
    # bfloat16 rounds the product, its scale and the sum with the bias.
    assert (error <= 2**-7 * (product.abs() + bias.abs()) + 1e-6).all()


@PRESETS
@torch.inference_mode()
def test_ids_are_those_of_a_plain_model_with_the_rounded_weights(preset):
    plain = make(preset | WIDE).float()
    model = packed.pack(copy.deepcopy(plain), int8=True)
    assert packed.dtype_of(model) == torch.int8
    for name, layer in model.named_modules():
        if isinstance(layer, packed.Int8Linear) and name != "unembedding":
            plain.get_submodule(name).weight.data = dequantised(layer).float()
    head = plain.unembedding_weight.bfloat16()
    plain.bfloat16().float()  # round everything else, too
    head = dequantised(packed.Int8Linear(head, None)).float()

    n_clear = n_ids = 0
    for prompt, ids in zip(PROMPTS, generate(model, n_tokens=6, temperature=0.0), strict=True):
        for i, found in enumerate(ids):
            window = torch.tensor([[*prompt, *ids[:i]][-plain.config.longest_input :]])
            if len(prompt) + i > plain.config.longest_input:
                break  # the window has slid
            first, second = plain.unembed(plain.hidden(window)[:, -1:], head).topk(2).values[0, 0]
            n_ids += 1
            if first - second > 0.05 * first.abs():
                n_clear += 1
                assert found == plain.unembed(plain.hidden(window)[:, -1:], head).argmax()
    assert n_clear > n_ids / 2 > 5


def test_a_matrix_whose_rows_the_kernel_cannot_read_is_not_in_int8():
    model = packed.pack(make(LLAMA | GROUPED | WIDE), int8=True)
    assert isinstance(model.blocks[0].mlp.input, packed.Int8Linear)
    assert isinstance(model.blocks[0].mlp.output, nn.Linear)  # 40 inputs
    assert all(len(ids) == 9 for ids in generate(model, n_tokens=9))
