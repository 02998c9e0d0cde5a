"""A model of xl's width on 64 fake devices: each stores a 64th of weights, gradients and optimizer state.

Fake tensors have shapes but no values. The fake process group answers every collective at once.
"""

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from forked import forked
from gptmini.configuration.building import build_component, component_of
from gptmini.configuration.compose import compose
from gptmini.model import GPT, training_loss
from gptmini.training.devices.distributed import first_rows, shard

RANKS = 64
VOCABULARY = 50257


def built(mesh, optimizer):
    """The embeddings and two of xl's 32 blocks on the first of 64 processes, and their optimizer."""
    overrides = ["model=xl", "model.n_layers=2", f"optimizer={optimizer}"]
    plain = compose("train", overrides).plain()
    model = GPT(build_component(component_of(plain, "model")).with_vocab_size(VOCABULARY))
    shard(model, mesh, precision="bf16", compile=False)
    return model, build_component(component_of(plain, "optimizer")).build(model)


def bytes_of_states(optimizer_name):
    """The number of all parameters and of those in the blocks, and the bytes that one process stores after a step.

    The bytes include weights, gradients and optimizer state.
    """
    # A mesh computes with values, so create it before tensors are fake.
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    mesh = init_device_mesh("cpu", (RANKS,))
    with FakeTensorMode():
        model, optimizer = built(mesh, optimizer_name)
        ids = torch.zeros(1, model.config.context_length, dtype=torch.int64)
        training_loss(model, ids, ids).backward()
        optimizer.step()

    n_bytes = 0
    for parameter in model.parameters():
        kept = [parameter, parameter.grad, *optimizer.state[parameter].values()]
        for tensor in kept:
            own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            if own.dim():  # step counts have no dimension
                n_bytes += own.numel() * own.element_size()
    n_in_blocks = sum(weight.numel() for weight in model.blocks.parameters())
    return model.n_parameters, n_in_blocks, n_bytes


# Per parameter in float32: its weight, its gradient, and two moments of AdamW or one of Muon.
@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "bytes_in_blocks"), [("adamw", 16), ("muon", 12)])
def test_weights_gradients_and_moments_are_divided_evenly(optimizer, bytes_in_blocks):
    n_parameters, n_in_blocks, n_bytes = forked(bytes_of_states, optimizer)
    assert n_in_blocks > 2e8
    expected = bytes_in_blocks * n_in_blocks + 16 * (n_parameters - n_in_blocks)
    assert n_bytes == pytest.approx(expected / RANKS, rel=0.01)


def first_rows_of_ranks(n_ranks, shape, n_rows):
    """Each rank's part of the first rows of a sharded matrix with the values 0, 1, 2, ..."""
    found = []
    for rank in range(n_ranks):
        dist.init_process_group("fake", rank=rank, world_size=n_ranks, store=FakeStore())
        layer = torch.nn.Linear(*reversed(shape), bias=False)
        layer.weight.data = torch.arange(layer.weight.numel(), dtype=torch.float32).view(shape)
        fully_shard(layer, mesh=init_device_mesh("cpu", (n_ranks,)))
        found += first_rows(layer.weight.detach(), n_rows).tolist()
        dist.destroy_process_group()
    return found


# Shards of 3, 3, 3 and 1 rows; of 2, 2, 1 and 0 rows.
@pytest.mark.parametrize(("n", "n_rows"), [(10, 8), (10, 3), (10, 10), (5, 4), (5, 5)])
def test_the_first_rows_of_a_divided_matrix_lie_each_on_one_rank(n, n_rows):
    expected = torch.arange(n * 3, dtype=torch.float32).view(n, 3)[:n_rows]
    assert forked(first_rows_of_ranks, 4, (n, 3), n_rows) == expected.tolist()
