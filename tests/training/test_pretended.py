"""A model of seven billion parameters on 64 devices that torch pretends: it is sharded, trained a step, and fits.

Fake tensors have shapes and no numbers, and the fake process group answers every collective at once.
"""

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from forked import forked
from gptmini.commands.compose import compose
from gptmini.commands.parts import build_part
from gptmini.model import GPT, training_loss
from gptmini.training.distributed import shard

RANKS = 64
MEMORY = 80e9  # bytes of a GPU
VOCABULARY = 50257


def built(mesh, optimizer):
    """The model xl as the first of 64 processes has it, and its optimizer."""
    config, _ = compose("train", ["model=xl", f"optimizer={optimizer}"])
    model = GPT(build_part(config.model).with_vocab_size(VOCABULARY))
    shard(model, mesh, precision="bf16", compile=False)
    return model, build_part(config.optimizer).build(model)


def bytes_of_states(optimizer_name):
    """Number of parameters, and the bytes of weights, gradients and moments that one process keeps after a step."""
    # A mesh computes with numbers, and so is made before they are fake.
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
            if own.dim():  # a step's number has no dimension
                n_bytes += own.numel() * own.element_size()
    return model.n_parameters, n_bytes


@pytest.mark.slow  # traces a step of 32 blocks
@pytest.mark.parametrize(
    ("optimizer", "bytes_a_parameter"),
    [("adamw", 16), ("muon", 12)],  # AdamW's two moments; Muon's one, of nearly all
)
def test_seven_billion_parameters_are_divided_evenly(optimizer, bytes_a_parameter):
    n_parameters, n_bytes = forked(bytes_of_states, optimizer)
    assert 6.5e9 < n_parameters < 7.5e9
    assert n_bytes == pytest.approx(bytes_a_parameter * n_parameters / RANKS, rel=0.06)
    assert n_bytes < MEMORY / 20
