"""FSDP2: each device holds a share of every weight, and sees whole weights only of the block that it computes.

The policy stands here alone. The model does not know that its weights are shared: it is made whole from the seed, or
read from a checkpoint, and then divided. Functions that say so are collective: every process must call them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from gptmini.model import GPT
from gptmini.model.gpt import gpt_of_shapes

# Most parameters of a model that is gathered on one device to sample from it: 8 GB in float32.
GATHERED = 2 * 10**9
# Most parameters of which the gradients are reduced once a step. Until the last micro-step every device keeps whole
# gradients, 4 bytes a parameter; above this number they are reduced, and divided, in each micro-step.
REDUCED_ONCE = 4 * 10**9


class ShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy for FSDP2 with every device in one group, which saves what a run of one process saves."""

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the whole weights on the first process, and nothing on the others; collective."""
        module = self.lightning_module
        assert module is not None
        parameters = dict(module.named_parameters())
        if self._writes_shards:
            return parameters
        return whole_tensors(parameters, keep=self.is_global_zero)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the whole moments by the names of their parameters on the first process; collective."""
        module = self.lightning_module
        assert module is not None
        if self._writes_shards:
            named = module.named_parameters()
            return {
                "state": {name: optimizer.state[p] for name, p in named if p in optimizer.state}
            }

        state = {}
        for name, parameter in module.named_parameters():
            if parameter in optimizer.state:
                moments = whole_tensors(optimizer.state[parameter], keep=self.is_global_zero)
                state[name] = moments
        return {"state": state if self.is_global_zero else {}}

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        """Write a checkpoint: whole by the first process, or by every process its share; collective."""
        if self._writes_shards:
            self.checkpoint_io.save_checkpoint(checkpoint, self.broadcast(filepath))
        else:
            super().save_checkpoint(checkpoint, filepath, storage_options)

    @property
    def _writes_shards(self) -> bool:
        """Whether a checkpoint holds each process's share of a tensor instead of whole tensors."""
        module = self.lightning_module
        assert module is not None
        most = getattr(self.checkpoint_io, "shards_above", None)
        return most is not None and sum(p.numel() for p in module.parameters()) > most


def shard(model: GPT, mesh: DeviceMesh, *, precision: str, compile: bool) -> None:
    """Divide the weights of a model among the devices of a mesh, block by block; collective.

    Each block is a unit: its weights are gathered before it is computed, and given back afterwards. What is not in a
    block, embeddings, last norm and unembedding, is gathered for the whole of a forward and backward pass.

    Args:
        model: a whole model on the CPU, equal on all processes.
        mesh: of one dimension.
        precision: fp32; with bf16 or bf16_stream weights are gathered, and used, in bfloat16, and their gradients are
            reduced in float32.
        compile: whether each block is compiled.
    """
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


def reduces_once(model: GPT) -> bool:
    """Whether gradients of a model are reduced once a step, not in each micro-step."""
    return model.n_parameters <= REDUCED_ONCE


def reduce_gradients(model: GPT, *, is_last: bool) -> None:
    """Say whether the next backward pass is the last one of its step, after which alone gradients are reduced."""
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(is_last)
    model.set_is_last_backward(is_last)


def give_back(model: GPT) -> None:
    """Give back the weights that a pass without a backward pass has gathered."""
    assert isinstance(model, FSDPModule)
    model.reshard()


def gathered(tensor: Tensor) -> Tensor:
    """The whole of a tensor, of which each process may hold a share; collective if it does."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def first_rows(tensor: Tensor, n_rows: int) -> Tensor:
    """The first rows of a tensor; of one that is divided, those of them that lie on this device."""
    if not isinstance(tensor, DTensor):
        return tensor[:n_rows]

    share = tensor.to_local()
    _, (begin, *_) = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return share[: max(0, n_rows - begin)]


def whole_tensors(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """The whole of each tensor in the CPU's memory if keep, else an empty dict; collective, tensor by tensor."""
    kept = {}
    for name, tensor in tensors.items():
        full = gathered(tensor.detach())
        if keep:
            kept[name] = full.cpu()
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


def whole_model(model: GPT, *, keep: bool) -> GPT | None:
    """A copy of a sharded model with all its weights, on its device, if keep; else None. Collective.

    Of a model of more than GATHERED parameters there is no copy.
    """
    if model.n_parameters > GATHERED:
        return None

    weights = {}
    for name, parameter in model.named_parameters():
        full = gathered(parameter.detach())
        if keep:
            weights[name] = full
    if not keep:
        return None

    copy = gpt_of_shapes(model.config)
    copy.load_state_dict(weights, assign=True)
    for name, buffer in model.named_buffers():
        setattr(copy, name, buffer)
    return copy.eval()
