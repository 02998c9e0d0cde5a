"""Muon against torch's own, AdamW's groups against torch's own, and every parameter in exactly one group."""

import copy

import pytest
import torch
from torch import nn

from gptmini.model import GPTConfig, new_gpt, next_token_loss
from gptmini.optim import MuonSettings
from gptmini.optim.muon import MuonAdamW
from sizes import GPT2, G

SETTINGS = {
    "lr": 0.02,
    "embedding_lr": 0.03,
    "unembedding_lr": 0.01,
    "scalar_lr": 0.005,
    "momentum": [0.85, 0.95],
    "momentum_warmup_steps": 3,
    "ns_steps": 5,
    "weight_decay": 0.1,
    "cautious": False,
    "betas": [0.8, 0.95],
    "eps": 1e-8,
}
SHAPES = ((7, 4), (4, 11), (4, 11), (5, 5), (11, 4))


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def hidden_group(parameters, **changes):
    group = {
        "params": parameters,
        "kind": "muon",
        "lr": 0.02,
        "momentum": [0.95, 0.95],
        "momentum_warmup_steps": 0,
        "ns_steps": 5,
        "weight_decay": 0.1,
        "cautious": False,
    }
    return group | changes


def assert_equal(before, after):
    torch.testing.assert_close(after, before, rtol=0, atol=0)


@pytest.fixture
def float32_in_torch(monkeypatch):
    """Keep torch's Muon in float32 for a close comparison; it would convert matrices to bfloat16."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)


@pytest.mark.parametrize("ns_steps", [1, 4, 5])
def test_muon_groups_equal_torchs_muon(float32_in_torch, ns_steps):
    ours = [nn.Parameter(drawn(*shape, seed=i)) for i, shape in enumerate(SHAPES)]
    theirs = [nn.Parameter(drawn(*shape, seed=i)) for i, shape in enumerate(SHAPES)]
    optimizers = [
        MuonAdamW([hidden_group(ours, ns_steps=ns_steps)]),
        torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, momentum=0.95, ns_steps=ns_steps),
    ]

    for step in range(5):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = drawn(*one.shape, seed=step)
            other.grad = drawn(*one.shape, seed=step)
        for optimizer in optimizers:
            optimizer.step()

    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_momentum_rises_by_the_step():
    parameter = nn.Parameter(torch.zeros(1, 1))
    optimizer = MuonAdamW([hidden_group([parameter], momentum=[0.5, 0.9], momentum_warmup_steps=2)])
    expected = 0.0

    for gradient, momentum in ((1.0, 0.5), (2.0, 0.7), (4.0, 0.9), (8.0, 0.9)):
        parameter.grad = torch.full((1, 1), gradient)
        optimizer.step()
        expected = momentum * expected + (1 - momentum) * gradient
        assert optimizer.state[parameter]["momentum"].item() == pytest.approx(expected)


@pytest.mark.parametrize("cautious", [False, True])
def test_a_step_that_is_flagged_changes_nothing_and_is_not_counted(cautious):
    model, optimizer = small(cautious=cautious)

    for flag in (0.0, 1.0, 0.0):
        before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
        backward(model)
        if flag:
            for parameter in model.parameters():
                parameter.grad.fill_(float("nan"))

        optimizer.found_inf = torch.tensor(flag)
        optimizer.step()
        optimizer.zero_grad()
        if flag:
            assert_equal(before, (model.state_dict(), optimizer.state_dict()["state"]))

    counts = {moments["step"].item() for moments in optimizer.state.values()}
    assert counts == {2.0}


def test_cautious_decay_shrinks_only_what_the_step_shrinks():
    start = torch.tensor([[2.0, -2.0, 0.5]])

    def moved(**changes):
        parameter = nn.Parameter(start.clone())
        # The step lowers the first two weights and raises the third.
        parameter.grad = torch.tensor([[1.0, 1.0, -1.0]])
        MuonAdamW([hidden_group([parameter], **changes)]).step()
        return parameter.detach()

    undecayed = moved(weight_decay=0.0)
    decay = -0.02 * 0.1 * start
    torch.testing.assert_close(moved() - undecayed, decay, atol=1e-6, rtol=0)

    kept = torch.tensor([[1.0, 0.0, 0.0]])  # 2 falls towards 0; -2 and 0.5 move away from it
    torch.testing.assert_close(moved(cautious=True) - undecayed, decay * kept, atol=1e-6, rtol=0)


def small(**changes):
    """A model with every kind of parameter, whose block matrices all differ in shape, and its optimizer."""
    model = new_gpt(GPTConfig(**GPT2 | {"n_kv_heads": G, "tie_embeddings": False}), 1)
    return model, MuonSettings(**SETTINGS | changes).build(model)


def backward(model):
    tokens = torch.randint(11, (3, 5), generator=torch.Generator().manual_seed(3))
    next_token_loss(model(tokens), tokens).backward()


def test_every_parameter_is_in_the_group_that_is_meant_and_in_no_other():
    model, optimizer = small()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        members = sorted(names.pop(id(parameter)) for parameter in group["params"])
        groups.append((group["kind"], group["peak_lr"], members))

    assert not names  # a parameter in two groups would have raised a KeyError

    (kind, rate, hidden), *others = groups
    parts = ("attention.output", "attention.qkv", "mlp.input", "mlp.output")
    assert (kind, rate) == ("muon", 0.02)
    assert hidden == [f"blocks.{i}.{part}.weight" for i in range(2) for part in parts]
    assert others[0] == ("adamw", 0.03, ["embedding.weight", "position_embedding.weight"])
    assert others[1] == ("adamw", 0.01, ["unembedding.weight"])
    assert others[2][:2] == ("adamw", 0.005)

    for group in optimizer.param_groups:
        # torch's load_state_dict puts the step counts of its fused kernel on the weights' device.
        assert group.get("fused", False) == (group["kind"] == "adamw")


def test_a_tied_matrix_learns_as_an_unembedding():
    optimizer = MuonSettings(**SETTINGS).build(new_gpt(GPTConfig(**GPT2), 1))
    _, embeddings, unembeddings, *_ = optimizer.param_groups
    assert (len(embeddings["params"]), embeddings["peak_lr"]) == (1, 0.03)
    assert (len(unembeddings["params"]), unembeddings["peak_lr"]) == (1, 0.01)


def test_adamw_groups_equal_torchs_adamw():
    model, optimizer = small()
    twin, _ = small()
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    # torch's AdamW gets the twin's parameters with the same names and learning rates.
    theirs = {}
    groups = []
    for group in optimizer.param_groups:
        if group["kind"] == "adamw":
            for name in (names[id(parameter)] for parameter in group["params"]):
                theirs[name] = twin.get_parameter(name)
                groups.append({"params": [theirs[name]], "lr": group["peak_lr"]})
    adamw = torch.optim.AdamW(groups, betas=(0.8, 0.95), eps=1e-8, weight_decay=0.0)

    for _ in range(3):
        backward(model)
        for name, parameter in theirs.items():
            parameter.grad = model.get_parameter(name).grad.clone()
        optimizer.step()
        adamw.step()
        optimizer.zero_grad()

    for name, parameter in theirs.items():
        torch.testing.assert_close(model.get_parameter(name), parameter, atol=1e-6, rtol=1e-5)
