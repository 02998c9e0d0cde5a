"""Parameter groups, and steps that a flag skips."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from gptmini.model import GPTConfig, new_gpt
from gptmini.optim import AdamWSettings, MuonSettings, skip_step_if
from optim.test_muon import SETTINGS as MUON
from sizes import MODERN

SETTINGS = {"lr": 0.03, "betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.4}


class Tied(nn.Module):
    """Two layers that share a matrix, a norm, a bias, a scalar, a bank of matrices, and one frozen matrix."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.hidden = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.gain = nn.Parameter(torch.ones(()))
        self.bank = nn.Parameter(torch.ones(3, 5, 7))
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Linear(2, 6).requires_grad_(False)


def names_of(model, parameters):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return sorted(names[id(parameter)] for parameter in parameters)


MATRICES = ["bank", "embedding.weight", "hidden.weight"]


def test_only_matrices_decay():
    model = Tied()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    optimizer = AdamWSettings(**SETTINGS).build(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()

    for name, parameter in model.named_parameters():
        shrunk = 1 - 0.03 * 0.4 if name in MATRICES else 1.0
        torch.testing.assert_close(parameter, before[name] * shrunk, msg=name)


@pytest.mark.parametrize("build", ["adamw", "muon"])
def test_factors_scale_the_rate_of_each_kind_of_weights(build):
    settings = {"adamw": (AdamWSettings, SETTINGS), "muon": (MuonSettings, MUON)}
    make, arguments = settings[build]
    model = new_gpt(GPTConfig(**MODERN), 1)
    factors = {"matrices": 0.5, "embedding": 0.0, "unembedding": 3.0}

    def rates(optimizer):
        found = {}
        for group in optimizer.param_groups:
            for name in names_of(model, group["params"]):
                found[name] = group["peak_lr"]
        return found

    plain = rates(make(**arguments).build(model))
    scaled = rates(make(**arguments, lr_scale=factors).build(model))
    for name, rate in plain.items():
        kind = name.split(".")[0].replace("blocks", "matrices")
        assert scaled[name] == pytest.approx(factors[kind] * rate), name
    assert scaled["embedding.weight"] == 0.0


class Flag:
    """A flag on a device that this machine may lack."""

    def __init__(self, value, kind):
        self.value = value
        self.device = torch.device(kind)

    def item(self):
        return self.value


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("cpu", partial(torch.optim.SGD, lr=0.1)),
        # With the flag, the first step would leave the momentum uninitialized.
        ("cpu", partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True)),
        ("cpu", torch.optim.AdamW),
        ("mps", partial(torch.optim.AdamW, fused=True)),
    ],
)
def test_an_optimizer_that_does_not_bear_the_flag_finds_no_gradients(kind, make):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = make([weight])
    weight.grad = torch.ones(3)
    skip_step_if(optimizer, Flag(0.0, kind))

    assert weight.grad is not None

    skip_step_if(optimizer, Flag(1.0, kind))
    assert weight.grad is None
    assert getattr(optimizer, "found_inf", None) is None


def test_a_fused_optimizer_is_given_the_flag_and_not_waited_for():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], fused=True)
    for flag, moved in ((torch.tensor(1.0), False), (torch.tensor(0.0), True)):
        weight.grad = torch.full((3,), math.nan if flag else 1.0)
        skip_step_if(optimizer, flag)
        assert optimizer.found_inf is flag
        optimizer.step()
        assert (not weight.equal(torch.ones(3))) == moved

    assert optimizer.state[weight]["step"] == 1
