"""FSDP2: each device holds a share of every weight, and sees whole weights only of the block that it computes.

The policy stands here alone. The model does not know that its weights are shared: it is made whole from the seed, or
read from a checkpoint, and then divided. GPTModule does not ask either: where every device has the whole model, the
functions here do nothing, or return what they are given. Functions that say so are collective: every process must call
them.
"""

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from gptmini.model import GPT
from gptmini.model.gpt import gpt_of_shapes
from gptmini.optim.muon import MuonAdamW

# Most parameters of a model that is gathered on one device to sample from it: 8 GB in float32.
GATHERED = 2 * 10**9
# Most parameters of which the gradients are reduced once a step. Until the last micro-step every device keeps whole
# gradients, 4 bytes a parameter; above this number they are reduced, and divided, in each micro-step.
REDUCED_ONCE = 4 * 10**9


class ShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy for FSDP2, whose checkpoints hold what those of one process hold.

    With save_distributed_checkpoint=False Lightning gathers the whole weights in the memory of the first process.
    """

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return nothing: GPTModule.on_save_checkpoint gathers the moments, under every strategy."""
        return {}


def shard(model: GPT, mesh: DeviceMesh, *, precision: str, compile: bool) -> None:
    """Divide the weights of a model among the devices of a mesh, block by block, unless they are already; collective.

    Each block is a unit: its weights are gathered before it is computed, and given back afterwards. What is not in a
    block, embeddings, last norm and unembedding, is gathered for the whole of a forward and backward pass.

    Args:
        model: a whole model on the CPU, equal on all processes.
        mesh: of one dimension.
        precision: fp32; with bf16 or bf16_stream weights are gathered, and used, in bfloat16, and their gradients are
            reduced in float32.
        compile: whether each block is compiled.
    """
    if is_sharded(model):
        return
    policy = MixedPrecisionPolicy()
    if precision != "fp32":
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,  # tables of rotary positions stay in float32, as on one device
        )

    for block in model.blocks:
        if compile:
            block.compile(dynamic=False, fullgraph=True)
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    # The losses of training and of validation call hidden, not the model itself.
    register_fsdp_forward_method(model, "hidden")


def is_sharded(model: GPT) -> bool:
    """Whether a model's weights are divided among several devices."""
    return isinstance(model, FSDPModule)


def before_micro_step(model: GPT, *, is_last: bool) -> None:
    """Have gradients reduced in the last micro-step of a step alone, unless the model is larger than REDUCED_ONCE."""
    if isinstance(model, FSDPModule) and model.n_parameters <= REDUCED_ONCE:
        model.set_requires_gradient_sync(is_last)
        model.set_is_last_backward(is_last)


def eagerly(model: GPT) -> AbstractContextManager[object]:
    """Use no compiled block in a with block: they are for the shape of a micro-batch, and validation has others."""
    return torch.compiler.set_stance("force_eager") if is_sharded(model) else nullcontext()


def after_validation(model: GPT) -> None:
    """Give back the weights that passes without a backward pass have gathered."""
    if isinstance(model, FSDPModule):
        model.reshard()


def share_matrices(
    optimizer: torch.optim.Optimizer, model: GPT, device: torch.device, n_ranks: int
) -> None:
    """Let several devices that all have the whole model orthogonalize Muon's matrices, each its own; collective."""
    if isinstance(optimizer, MuonAdamW) and n_ranks > 1 and not is_sharded(model):
        optimizer.mesh = init_device_mesh(device.type, (n_ranks,))


def gathered(tensor: Tensor) -> Tensor:
    """The whole of a tensor, of which each process may hold a share; collective if it does."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gathered_on_first(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors; of those that are divided the whole, in the CPU's memory of the first process. Collective.

    One tensor after the other is gathered. The dict of a process that is not the first lacks those that are divided.
    """
    kept = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, DTensor):
            kept[name] = tensor
            continue
        whole = tensor.full_tensor()
        if torch.distributed.get_rank() == 0:
            kept[name] = whole.cpu()
    return kept


def share_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """This process's share of a tensor that all have, divided as a parameter is; the tensor itself if that is whole."""
    if not isinstance(parameter, DTensor) or tensor.shape != parameter.shape:
        return tensor
    return distribute_tensor(
        tensor.to(parameter.device),
        parameter.device_mesh,
        parameter.placements,
        src_data_rank=None,  # every process has the same numbers, so that none are sent
    )


def first_rows(tensor: Tensor, n_rows: int) -> Tensor:
    """The first rows of a tensor; of one that is divided, those of them that lie on this device."""
    if not isinstance(tensor, DTensor):
        return tensor[:n_rows]

    # FSDP2 divides rows as torch.chunk does: shares have one size, except that the last ones are smaller or empty.
    mesh = tensor.device_mesh
    begin = mesh.get_local_rank() * math.ceil(len(tensor) / mesh.size())
    return tensor.to_local()[: max(0, n_rows - begin)]


def whole_norms(model: GPT, norms: Tensor) -> Tensor:
    """Norms of tensors of which first_rows returns what lies on this device, whose own norms are given; collective."""
    if not is_sharded(model):
        return norms

    squares = norms.square()
    torch.distributed.all_reduce(squares)
    return squares.sqrt()


def whole_model(model: GPT, *, keep: bool) -> GPT | None:
    """The model if keep, else None; of one that is divided, a copy with all its weights on its device. Collective.

    Of a divided model of more than GATHERED parameters there is no copy.
    """
    if not is_sharded(model):
        return model if keep else None
    if model.n_parameters > GATHERED:
        return None

    weights = {}
    for name, parameter in model.named_parameters():
        whole = gathered(parameter.detach())
        if keep:
            weights[name] = whole
    if not keep:
        return None

    copy = gpt_of_shapes(model.config)
    copy.load_state_dict(weights, assign=True)
    for name, buffer in model.named_buffers():
        setattr(copy, name, buffer)
    return copy.eval()
