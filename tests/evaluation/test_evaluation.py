"""Evaluation gives each token the same weight, converts units correctly, and does not change the model."""

import math

import pytest
import torch

from gptmini.evaluation import evaluate, token_losses
from gptmini.system.errors import UserError
from sizes import GPT2, V
from toys import wide_gpt


def make(**changes):
    return wide_gpt(GPT2 | changes).eval()


def unequal_batches():
    generator = torch.Generator().manual_seed(2)
    for shape in ((5, 13), (3, 7), (1, 1)):
        tokens = torch.randint(V, shape, generator=generator)
        targets = torch.randint(V, shape, generator=generator)
        yield tokens, targets


@torch.no_grad()
def nats_by_hand(model):
    """Return -log softmax of each target, by batch, computed position by position."""
    batches = []
    for tokens, targets in unequal_batches():
        logits = model(tokens).double().flatten(0, 1)  # (B * T, V)
        nats = []
        for scores, target in zip(logits.tolist(), targets.flatten().tolist(), strict=True):
            nats.append(math.log(sum(map(math.exp, scores))) - scores[target])
        batches.append(nats)
    return batches


def test_loss_is_the_mean_over_tokens_not_over_batches():
    model = make()
    nats = nats_by_hand(model)
    expected = sum(map(sum, nats)) / (65 + 21 + 1)
    mean_of_means = sum(sum(batch) / len(batch) for batch in nats) / 3
    assert abs(expected - mean_of_means) > 0.01  # the two differ in this test

    result = evaluate(model, unequal_batches(), tokens_per_byte=0.25)
    assert result.n_tokens == 87
    assert result.loss == pytest.approx(expected, rel=1e-6)
    assert result.bits_per_byte == pytest.approx(expected / math.log(2) / 4, rel=1e-6)


@pytest.mark.parametrize("batches", [[], [(torch.zeros(2, 3).long(), torch.full((2, 3), -100))]])
def test_batches_without_a_token_that_counts_are_refused(batches):
    with pytest.raises(UserError, match="at least one token, got none"):
        evaluate(make(), batches, tokens_per_byte=1.0)


@pytest.mark.parametrize("training", [True, False])
def test_evaluating_draws_nothing_and_leaves_the_model_as_it_was(training):
    expected = evaluate(make(), unequal_batches(), tokens_per_byte=1.0)
    model = make(dropout=0.5).train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()

    # Equal results show that dropout is off.
    assert evaluate(model, unequal_batches(), tokens_per_byte=1.0) == expected
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training is training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_logits_of_a_large_vocabulary_are_summed_piece_by_piece(monkeypatch):
    model = make()
    expected = [sum(batch) for batch in nats_by_hand(model)]

    monkeypatch.setattr("gptmini.model.loss.LOGITS_AT_ONCE_ON_CPU", 7 * V)
    unembed = model.unembed
    seen = []
    model.unembed = lambda hidden: seen.append(hidden.shape[1]) or unembed(hidden)
    sums = [float(token_losses(model, *batch).sum()) for batch in unequal_batches()]

    assert sums == pytest.approx(expected, rel=1e-5)
    assert seen == [7] * 9 + [2] + [7] * 3 + [1]  # 65, 21 and 1 rows
