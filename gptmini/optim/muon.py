"""An optimizer that uses Muon for the matrices in the blocks and AdamW for all other parameters.

The kind of a parameter group determines whether the group is updated by Muon or by AdamW.
"""

from collections import defaultdict
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.optim.adamw import adamw

from gptmini.optim.owners import orthogonalize_by_owner

# The coefficients a, b and c of the polynomial a x + b (x x^T) x + c (x x^T)^2 x. Applying the polynomial several times
# moves singular values in (0, 1] towards 1. Source: Jordan et al. 2024.
QUINTIC = (3.4445, -4.7750, 2.0315)
SMALLEST_NORM = 1e-7  # avoids a division by 0 for a matrix of zeros
# Maps the kind of a group to the names of the optimizer state of each parameter in the group. The optimizer state of
# each parameter also contains a step count.
MOMENTS = {"muon": ("momentum",), "adamw": ("exp_avg", "exp_avg_sq")}


def orthogonalize(matrices: Tensor, ns_steps: int) -> Tensor:
    """Return matrices with orthonormal rows that are close to the given matrices, by Newton-Schulz iteration.

    The result is an approximation. It is computed in the dtype of the given matrices.

    Args:
        matrices: the given matrices, (n, rows, columns). A matrix must not have more rows than columns.
        ns_steps: number of iterations. After 5 iterations, all singular values except the smallest are close to 1. The
            difference to 1 is at most about 0.3.

    Returns an array of the shape (n, rows, columns).
    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
    """
    a, b, c = QUINTIC
    norms = matrices.norm(dim=(-2, -1), keepdim=True)  # (n, 1, 1)
    x = matrices / norms.clamp(min=SMALLEST_NORM)  # (n, rows, columns)
    for _ in range(ns_steps):
        gram = x @ x.mT  # (n, rows, rows)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)  # (n, rows, rows)
        x = torch.baddbmm(x, polynomial, x, beta=a)  # (n, rows, columns)
    return x


class _Batch(NamedTuple):
    """The properties that all matrices of a batch have in common. A batch of matrices is orthogonalized together."""

    # Shape of a full matrix. If the matrix has more rows than columns, this is the shape of the transposed matrix.
    shape: tuple[int, int]
    # Devices over which the matrices are sharded; None if this device has the full matrices.
    mesh: DeviceMesh | None
    placement: Placement  # how the batch of the shape (n, rows, columns) is sharded


class _Update(NamedTuple):
    """A matrix and the direction in which Muon updates the matrix.

    If the matrix has more rows than columns, the matrix and the direction are transposed. If the matrix is sharded,
    this device has only its shards of the matrix and of the direction.
    """

    matrix: Tensor  # (rows, columns), a view of the parameter
    direction: Tensor  # (rows, columns), before its orthogonalization
    rate_factor: float  # the learning rate of the group is multiplied by this factor
    batch: _Batch


class MuonAdamW(torch.optim.Optimizer):
    """An optimizer that applies Muon to groups of kind "muon", and AdamW to groups of kind "adamw".

    Muon treats the queries, keys and values of a block as one matrix, because training with three matrices is not
    faster. On a GPU that supports bfloat16, directions are orthogonalized in bfloat16 for every precision of training.

    The attribute found_inf is None or a scalar on the device of the weights. torch's GradScaler sets the same attribute
    on a fused optimizer. If found_inf is 1.0, the next step does not change the weights, the optimizer state or the
    step counts. The host does not wait for found_inf, so the step counts are on the device, too.

    With several devices, each device orthogonalizes its own matrices. This optimizer recognises parameters that FSDP2
    has sharded, because they are DTensors. If every device has all parameters, as under DDP, set the attribute mesh to
    the mesh of the devices. All devices must then call step() with equal gradients.

    Args:
        groups: dicts with the keys params and kind. A group of kind "muon" also needs lr, momentum (a pair),
            momentum_warmup_steps, ns_steps, weight_decay and cautious. A group of kind "adamw" also needs lr, betas,
            eps, weight_decay and fused.
    """

    def __init__(self, groups: list[dict]) -> None:
        for group in groups:
            if group["kind"] == "muon":
                # If torch's flag capturable is set, load_state_dict keeps the step counts on the device.
                group["capturable"] = True
        super().__init__(groups, {})  # there are no defaults, because every group is complete
        self.found_inf: Tensor | None = None
        self.mesh: DeviceMesh | None = None

    @torch.no_grad()
    def step(self, closure=None) -> Tensor | None:
        """Update every parameter that has a gradient. If a closure is given, call it before, and return its loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()

        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not trained:
                continue
            self._create_missing_state(group, trained)
            if group["kind"] == "muon":
                self._step_muon(group, trained)
            else:
                self._step_adamw(group, trained)
        return loss

    def _create_missing_state(self, group: dict, trained: list[Tensor]) -> None:
        for parameter in trained:
            if parameter in self.state:
                continue
            state = {name: torch.zeros_like(parameter) for name in MOMENTS[group["kind"]]}
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            self.state[parameter] = state

    def _step_adamw(self, group: dict, trained: list[Tensor]) -> None:
        states = [self.state[parameter] for parameter in trained]
        beta1, beta2 = group["betas"]

        # AdamW updates each element separately, so a device can update its shard of every parameter.
        adamw(
            params=[_local(parameter) for parameter in trained],
            grads=[_local(parameter.grad) for parameter in trained if parameter.grad is not None],
            exp_avgs=[_local(state["exp_avg"]) for state in states],
            exp_avg_sqs=[_local(state["exp_avg_sq"]) for state in states],
            max_exp_avg_sqs=[],
            state_steps=[state["step"] for state in states],
            fused=group["fused"],
            amsgrad=False,
            maximize=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            found_inf=self.found_inf,
        )

    def _step_muon(self, group: dict, trained: list[Tensor]) -> None:
        counts = [self.state[matrix]["step"] for matrix in trained]
        # All matrices of a group have taken the same number of steps, so use the first count.
        first, last = group["momentum"]
        momentum = momentum_at(counts[0], first, last, group["momentum_warmup_steps"])

        # 1.0 if this step is taken, 0.0 if this step is skipped. It is a tensor, because the host must not wait for it.
        applied = torch.ones_like(counts[0])
        if self.found_inf is not None:
            applied = 1 - self.found_inf
        torch._foreach_add_(counts, [applied] * len(counts))

        # Orthogonalize all matrices of the same shape as one batch.
        batches = defaultdict(list)
        for update in self._updates(trained, momentum, applied):
            batches[update.batch].append(update)

        for batch, updates in batches.items():
            directions = torch.stack([update.direction for update in updates])  # (n, rows, columns)
            directions = directions.mul_(applied)  # zeros in a skipped step
            directions = self._orthogonalize(directions, batch, group["ns_steps"])
            for update, direction in zip(updates, directions, strict=True):
                _change_matrix(update, direction, group, applied)

    def _orthogonalize(self, directions: Tensor, batch: _Batch, ns_steps: int) -> Tensor:
        # GPUs that support bfloat16 compute and exchange the directions, (n, rows, columns), in bfloat16.
        dtype = directions.dtype
        if directions.is_cuda and torch.cuda.is_bf16_supported(including_emulation=False):
            directions = directions.bfloat16()

        by_itself = partial(orthogonalize, ns_steps=ns_steps)
        mesh = batch.mesh or self.mesh
        if mesh is None:
            directions = by_itself(directions)
        else:
            directions = orthogonalize_by_owner(
                directions,
                by_itself,
                mesh,
                placement=batch.placement,
                shape=batch.shape,
            )
        return directions.to(dtype)

    def _updates(self, trained: list[Tensor], momentum: Tensor, applied: Tensor) -> list[_Update]:
        """Update the momentum of each matrix. Return each matrix with its direction, the Nesterov momentum."""
        dtype = trained[0].dtype
        weight_of_gradient = (1 - momentum).to(dtype)
        weight_of_momentum = momentum.to(dtype)

        updates = []
        for matrix in trained:
            assert matrix.grad is not None
            kept_momentum = _local(self.state[matrix]["momentum"])
            gradient = _local(matrix.grad)
            if self.found_inf is not None:
                # In a skipped step, interpolate the momentum with itself. This does not change the momentum.
                gradient = torch.where(applied > 0, gradient, kept_momentum)
            kept_momentum.lerp_(gradient, weight_of_gradient)
            direction = gradient.lerp(kept_momentum, weight_of_momentum)

            # The rows of a matrix belong to outputs, the columns to inputs. If inputs have size 1, an orthogonalized
            # update with more rows than columns changes each output only by sqrt(columns / rows). rate_factor is the
            # inverse of this number. So the same learning rate suits outputs of any width.
            n_rows, n_columns = matrix.shape
            rate_factor = max(1.0, n_rows / n_columns) ** 0.5
            local = _local(matrix)
            if n_rows > n_columns:
                local = local.mT
                direction = direction.mT
            updates.append(_Update(local, direction, rate_factor, _batch_of(matrix)))
        return updates


def momentum_at(count: Tensor, first: float, last: float, warmup_steps: int) -> Tensor:
    """Return the momentum after count steps.

    The momentum changes linearly from first to last over warmup_steps steps. Afterwards, it is last.

    Args:
        count: a scalar on any device. The host does not read it.
        first: momentum at count 0.
        last: momentum at count warmup_steps and later.
        warmup_steps: number of optimizer steps from first to last. With 0, the momentum is always last.

    Returns a float64 scalar on the device of count. On Apple's GPUs, the scalar is float32, because these GPUs do not
    support float64.
    """
    if count.device.type != "mps":
        count = count.double()
    rising = first + (last - first) * count / max(1, warmup_steps)
    # torch.where would copy a plain number to the device and make the host wait, so create a tensor on the device.
    return torch.where(count >= warmup_steps, torch.full_like(rising, last), rising)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _batch_of(matrix: Tensor) -> _Batch:
    n_rows, n_columns = matrix.shape
    is_transposed = n_rows > n_columns
    shape = (n_columns, n_rows) if is_transposed else (n_rows, n_columns)
    if not isinstance(matrix, DTensor):
        return _Batch(shape, None, Replicate())

    (placement,) = matrix.placements
    assert isinstance(placement, Shard)
    # In the shape (n, rows, columns), the rows are dimension 1.
    sharded_dim = 1 - placement.dim if is_transposed else placement.dim
    return _Batch(shape, matrix.device_mesh, Shard(1 + sharded_dim))


def _change_matrix(update: _Update, direction: Tensor, group: dict, applied: Tensor) -> None:
    """Decay a matrix, then move the matrix against its orthogonalized direction. applied is 0.0 in a skipped step."""
    matrix = update.matrix
    if group["weight_decay"]:
        decaying = applied
        if group["cautious"]:
            decaying = matrix * direction > 0  # weights that the step itself moves towards 0
        matrix.sub_(matrix * decaying, alpha=group["lr"] * group["weight_decay"])
    matrix.add_(direction, alpha=-group["lr"] * update.rate_factor)
