"""Dropout has the statistics of independent draws, and follows from the key of each sequence."""

import math

import numpy as np
import pytest
import torch

from gptmini.data import sequence_keys
from gptmini.model import GPT, GPTConfig, block, gpt
from gptmini.model.dropout import drop, split_keys
from sizes import CONTEXT, GPT2, MODERN, B, N, V

N_SEQUENCES = 40
N_SITES = 5


@pytest.mark.parametrize("probability", [0.01, 0.2, 0.5])
def test_elements_are_dropped_at_the_given_rate_and_independently(probability):
    sequences = torch.from_numpy(sequence_keys(np.arange(N_SEQUENCES), seed=1))
    keys = split_keys(sequences, N_SITES)  # (sequences, sites)
    ones = torch.ones(keys.numel(), 64, 96, dtype=torch.float64)
    scaled = drop(ones, keys.flatten(), probability).view(*keys.shape, 64, 96)
    assert scaled.unique().tolist() == pytest.approx([0, 1 / (1 - probability)])

    # A scaled element has mean 1 and variance p / (1 - p). In 5 standard deviations, chance is one in a million.
    draws = (scaled - 1) / math.sqrt(probability / (1 - probability))
    assert abs(draws.mean()) < 5 / math.sqrt(draws.numel())
    for dim in range(4):  # neighbours: sequences, sites, positions, channels
        n_pairs = draws.size(dim) - 1
        products = draws.narrow(dim, 0, n_pairs) * draws.narrow(dim, 1, n_pairs)
        assert abs(products.mean()) < 5 / math.sqrt(products.numel())


def test_every_sequence_of_every_seed_has_a_key_of_its_own():
    keys = [sequence_keys(np.arange(1000), seed=seed) for seed in (0, 1, 2**63 - 1)]
    assert len(np.unique(keys)) == 3000
    assert np.array_equal(sequence_keys(np.array([7, 999]), seed=1), keys[1][[7, 999]])


def wide_model(preset):
    """A model in training mode, with weights so wide that every part matters."""
    torch.manual_seed(1)
    model = GPT(GPTConfig(**preset | {"dropout": 0.4})).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.train()


@pytest.mark.parametrize("preset", [GPT2, MODERN])
def test_a_sequence_has_the_dropout_of_its_key_in_every_batch(preset):
    model = wide_model(preset)
    tokens = torch.randint(V, (B, CONTEXT))
    keys = torch.tensor([17, 4], dtype=torch.int32)
    together = model.hidden(tokens, dropout_keys=keys)
    for i in range(B):
        alone = model.hidden(tokens[i : i + 1], dropout_keys=keys[i : i + 1])
        torch.testing.assert_close(alone[0], together[i])

    assert not torch.allclose(together, model.hidden(tokens, dropout_keys=keys.flip(0)))
    assert torch.equal(model.eval().hidden(tokens, dropout_keys=keys), model.hidden(tokens))


def test_every_site_of_a_model_drops_other_elements(monkeypatch):
    seen = []

    def record(x, keys, probability):
        seen.append(tuple(keys.tolist()))
        return drop(x, keys, probability)

    monkeypatch.setattr(block, "drop", record)
    monkeypatch.setattr(gpt, "drop", record)
    wide_model(GPT2).hidden(torch.zeros(B, CONTEXT, dtype=torch.int64))
    assert len(seen) == 2 * N + 1
    assert len({key for keys in seen for key in keys}) == B * (2 * N + 1)


def test_without_keys_dropout_follows_from_torchs_generator():
    model = wide_model(MODERN)
    tokens = torch.randint(V, (B, CONTEXT))
    outputs = []
    for seed in (5, 6, 5):
        torch.manual_seed(seed)
        outputs.append(model(tokens))
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], outputs[1])
