"""The loss equals the formula, also in pieces and with rounded weights."""

import copy

import pytest
import torch

from gptmini.model import next_token_loss, training_loss
from model.tiny import B, draw, wide
from sizes import CONTEXT as T
from sizes import GPT2, MODERN, PRESETS, SMEARED, V

CONFIGS = {
    "gpt2": GPT2,
    "gpt2 without biases": GPT2 | {"bias": False},
    "modern": MODERN,
    "modern, tied": MODERN | {"tie_embeddings": True},
    "modern, grouped heads": MODERN | {"n_kv_heads": 2},
    "smeared": SMEARED,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_loss_equals_a_written_out_log_softmax_and_narrow_logits_are_widened(dtype):
    torch.manual_seed(0)
    logits = (4 * torch.randn(B, T, V)).to(dtype)
    targets = torch.randint(V, (B, T))

    exact = logits.double()
    of_targets = exact.gather(-1, targets.unsqueeze(-1)).squeeze(-1)  # (B, T)
    expected = exact.exp().sum(-1).log() - of_targets  # (B, T)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5  # bfloat16 would be off by 1e-2

    each = next_token_loss(logits, targets, reduction="none")
    mean = next_token_loss(logits, targets)
    assert each.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(each.double(), expected.flatten(), atol=tolerance, rtol=0)
    torch.testing.assert_close(mean.double(), expected.mean(), atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@PRESETS
def test_a_loss_by_pieces_has_the_loss_and_gradients_of_the_whole(preset, dtype, monkeypatch):
    tokens = draw()[:, :-1]
    targets = draw()[:, 1:]
    sizes = []

    def loss_of(model):
        unembed = model.unembed

        def noting_the_size(hidden, *weight, **options):
            sizes.append(hidden.shape[1])
            return unembed(hidden, *weight, **options)

        model.unembed = noting_the_size
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            loss = training_loss(model, tokens, targets)
        (loss * 0.5).backward()  # scaled, as with several micro-steps
        return loss.detach()

    whole = wide(preset)
    monkeypatch.setattr("gptmini.model.loss.LOGITS_AT_ONCE_ON_CPU", 10**9)
    expected = loss_of(whole)

    in_pieces = wide(preset)
    monkeypatch.setattr("gptmini.model.loss.LOGITS_AT_ONCE_ON_CPU", 7 * V)
    loss = loss_of(in_pieces)

    assert sizes == [T - 1] + [7] * 8 + [4]  # 60 rows, seven at a time

    tolerance = {"atol": 1e-5, "rtol": 1e-4}
    if dtype is torch.bfloat16:
        tolerance = {"atol": 2e-2, "rtol": 2e-2}
    torch.testing.assert_close(loss, expected, **tolerance)
    for name, parameter in whole.named_parameters():
        gradient = in_pieces.get_parameter(name).grad
        torch.testing.assert_close(gradient, parameter.grad, **tolerance, msg=name)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_with_padding_have_the_loss_and_gradients_of_logits_without(name, dtype):
    def loss_of(model, **options):
        torch.manual_seed(0)
        hidden = torch.randn(B, T, model.config.d_model, dtype=dtype, requires_grad=True)
        logits = model.unembed(hidden, **options)
        loss = next_token_loss(logits, draw())
        loss.backward()
        return logits, loss, hidden.grad, model.unembedding_weight.grad

    cut = loss_of(wide(CONFIGS[name]).to(dtype))
    padded = loss_of(wide(CONFIGS[name]).to(dtype), keep_padding=True)
    assert padded[0].shape[-1] > V
    assert (padded[0][..., V:] == -torch.inf).all()

    tolerance = 1e-12 if dtype == torch.float64 else 1e-2
    for with_padding, without in zip(padded[1:], cut[1:], strict=True):
        torch.testing.assert_close(with_padding, without, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("pieces", [False, True])
def test_the_loss_is_the_mean_over_the_share_of_targets_that_count(pieces, monkeypatch):
    if pieces:
        monkeypatch.setattr("gptmini.model.loss.LOGITS_AT_ONCE_ON_CPU", 7 * V)
    model = wide(GPT2)
    tokens = draw()[:, :-1]
    targets = draw()[:, 1:].clone()
    mean = next_token_loss(model(tokens), targets)
    torch.testing.assert_close(training_loss(model, tokens, targets), mean)

    targets[:, ::2] = -100
    nats = next_token_loss(model(tokens), targets, reduction="sum")
    expected = nats / (0.25 * B * (T - 1))
    torch.testing.assert_close(training_loss(model, tokens, targets, counted_share=0.25), expected)


def test_a_loss_by_pieces_leaves_a_frozen_unembedding_alone(monkeypatch):
    monkeypatch.setattr("gptmini.model.loss.LOGITS_AT_ONCE_ON_CPU", 7 * V)
    model = wide(MODERN)
    tokens = draw()
    model.unembedding.weight.requires_grad_(False)
    training_loss(model, tokens[:, :-1], tokens[:, 1:]).backward()

    assert model.unembedding.weight.grad is None
    assert model.embedding.weight.grad.any()


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_stream_of_bfloat16_is_that_of_the_model_with_rounded_weights(name, pieces, monkeypatch):
    if pieces:
        monkeypatch.setattr("gptmini.model.loss.LOGITS_AT_ONCE_ON_CPU", 7 * V)
    model = wide(CONFIGS[name])
    rounded = copy.deepcopy(model).bfloat16()
    tokens = draw()
    batch = (tokens[:, :-1], tokens[:, 1:])

    hidden = model.hidden(tokens, dtype=torch.bfloat16)
    assert hidden.dtype == torch.bfloat16
    assert torch.equal(hidden, rounded.hidden(tokens))
    assert torch.equal(model.unembed(hidden), rounded(tokens))

    loss = training_loss(model, *batch, dtype=torch.bfloat16)
    expected = training_loss(rounded, *batch)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)

    # If a weight is used more than once, such as a token's row or a tied matrix, its gradients are summed in float32.
    loss.backward()
    expected.backward()
    for ours, theirs in zip(model.parameters(), rounded.parameters(), strict=True):
        assert ours.dtype == ours.grad.dtype == torch.float32
        largest = theirs.grad.abs().max().item()
        torch.testing.assert_close(ours.grad, theirs.grad.float(), rtol=0, atol=0.01 * largest)
