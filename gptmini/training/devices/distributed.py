"""FSDP2. Each device stores a shard of every weight, and gathers the full weights only for the block that it computes.

All code for FSDP2 is in this file. A model is first built from the seed or read from a checkpoint. Afterwards, the
model is sharded. Without FSDP2, the functions in this file do nothing or return their argument. So GPTModule calls the
functions under every strategy. In this file, "collective" means that every process must call the function.
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

from gptmini.model import GPT, meta_gpt
from gptmini.optim import MuonAdamW

# Maximum number of parameters of a model that is gathered on one device for sampling. This many parameters need 8 GB in
# float32.
GATHERED = 2 * 10**9
# Maximum number of parameters of a model whose gradients are reduced only once per step. Until the last micro-step,
# every device keeps the full gradients of such a model. They need 4 bytes per parameter. The gradients of a larger
# model are reduced and sharded in each micro-step.
REDUCED_ONCE = 4 * 10**9


class ShardedStrategy(ModelParallelStrategy):
    """Lightning's FSDP2 strategy. Its checkpoints have the same contents as the checkpoints of a run with one process.

    If save_distributed_checkpoint is False, Lightning gathers the full weights in the memory of the first process.
    """

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return an empty dict. Under every strategy, GPTModule.on_save_checkpoint gathers the optimizer state."""
        return {}


def shard(model: GPT, mesh: DeviceMesh, *, precision: str, compile: bool) -> None:
    """Shard the weights of a model over the devices of a mesh, block by block. Collective.

    Do nothing if the model is already sharded. The weights of a block are gathered before the block is computed, and
    they are freed afterwards. The weights of the embeddings, the last norm and the unembedding stay gathered during a
    forward and backward pass.

    The model is on the CPU and equal in all processes. The mesh has one dimension. Unless the precision is 'fp32',
    weights are gathered and used in bfloat16, and gradients are reduced in float32.
    """
    if is_sharded(model):
        return
    policy = MixedPrecisionPolicy()
    if precision != "fp32":
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,  # keep rotary tables in float32, as on one device
        )

    for block in model.blocks:
        if compile:
            block.compile(dynamic=False, fullgraph=True)
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    # The loss functions of training and validation call model.hidden(), and do not call the model itself.
    register_fsdp_forward_method(model, "hidden")


def is_sharded(model: GPT) -> bool:
    """Return whether a model is sharded over several devices."""
    return isinstance(model, FSDPModule)


def before_micro_step(model: GPT, *, is_last: bool) -> None:
    """Reduce the gradients only in the last micro-step, unless the model has more than REDUCED_ONCE parameters."""
    if isinstance(model, FSDPModule) and model.n_parameters <= REDUCED_ONCE:
        model.set_requires_gradient_sync(is_last)
        model.set_is_last_backward(is_last)


def eagerly(model: GPT) -> AbstractContextManager[object]:
    """Return a context manager that makes blocks run without compilation.

    Every validation uses this context manager, because the batches of a validation have different shapes.
    """
    return torch.compiler.set_stance("force_eager") if is_sharded(model) else nullcontext()


def after_validation(model: GPT) -> None:
    """Free the weights that were gathered for forward passes without a backward pass."""
    if isinstance(model, FSDPModule):
        model.reshard()


def share_matrices(
    optimizer: torch.optim.Optimizer, model: GPT, device: torch.device, n_ranks: int
) -> None:
    """Divide the orthogonalization of Muon among the devices if each device has the full model. Collective."""
    if isinstance(optimizer, MuonAdamW) and n_ranks > 1 and not is_sharded(model):
        optimizer.mesh = init_device_mesh(device.type, (n_ranks,))


def gathered(tensor: Tensor) -> Tensor:
    """Return the full tensor. Collective if the tensor is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gather_on_first(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gather sharded tensors one after the other on the CPU of the first process only. Collective.

    Tensors that are not sharded are returned unchanged.
    """
    on_first = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, DTensor):
            on_first[name] = tensor
            continue
        whole = tensor.full_tensor()
        if torch.distributed.get_rank() == 0:
            on_first[name] = whole.cpu()
    return on_first


def shard_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return this process' shard of a full tensor that is sharded like the parameter.

    Return the full tensor if the parameter is not sharded or has another shape. For example, a step count is a scalar.
    """
    if not isinstance(parameter, DTensor) or tensor.shape != parameter.shape:
        return tensor
    return distribute_tensor(
        tensor.to(parameter.device),
        parameter.device_mesh,
        parameter.placements,
        src_data_rank=None,  # every process already has the values, so do not send them
    )


def first_rows(tensor: Tensor, n_rows: int) -> Tensor:
    """Return the first rows of a tensor. If the tensor is sharded, return only the rows on this device."""
    if not isinstance(tensor, DTensor):
        return tensor[:n_rows]

    # FSDP2 splits the rows like torch.chunk. All shards have the same size, except that the last shards may be smaller
    # or empty.
    mesh = tensor.device_mesh
    begin = mesh.get_local_rank() * math.ceil(len(tensor) / mesh.size())
    return tensor.to_local()[: max(0, n_rows - begin)]


def full_norms(model: GPT, norms: Tensor) -> Tensor:
    """Return the norms of full tensors, given the norms of the rows on this device (see first_rows). Collective."""
    if not is_sharded(model):
        return norms

    squares = norms.square()
    torch.distributed.all_reduce(squares)
    return squares.sqrt()


def full_model(model: GPT, *, keep: bool) -> GPT | None:
    """Return the full model, or a full copy of a sharded model, if keep is true. Otherwise return None. Collective.

    If a sharded model has more than GATHERED parameters, the result is None.
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

    copy = meta_gpt(model.config)
    copy.load_state_dict(weights, assign=True)
    for name, buffer in model.named_buffers():
        setattr(copy, name, buffer)
    return copy.eval()
