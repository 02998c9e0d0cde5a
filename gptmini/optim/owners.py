"""Muon on several devices: each device orthogonalizes its own matrices, and all devices get the result.

Orthogonalization needs the full matrix and much computation. Each device owns an equal number of consecutive matrices
of one shape. If they do not divide evenly, the last devices own fewer or no matrices. The result equals that of one
device bit for bit, because every matrix is orthogonalized separately.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard


def orthogonalize_by_owner(
    matrices: Tensor,
    orthogonalize: Callable[[Tensor], Tensor],
    mesh: DeviceMesh,
    *,
    placement: Placement,
    shape: tuple[int, int],
) -> Tensor:
    """Orthogonalize matrices of one shape, each on the device that owns it; collective.

    If every device has all matrices, one all-gather distributes the results. If each device has a shard of every
    matrix, one exchange sends the shards to the owners, and another one sends the results back.

    Args:
        matrices: this device's part of n matrices, (n, rows, columns).
        orthogonalize: maps (k, rows, columns) to the same shape, each matrix separately, for any k above 0.
        mesh: the devices, in one dimension. All devices must call this for the same matrices.
        placement: Replicate() if each device has all matrices; Shard(1) or Shard(2) if each has some rows or columns.
        shape: rows and columns of a full matrix.

    Returns this device's part of the results, in the shape of matrices.
    """
    n_rows, n_columns = shape
    whole = torch.Size((len(matrices), n_rows, n_columns))
    stride = (n_rows * n_columns, n_columns, 1)

    def spread(local: Tensor, how: Placement) -> DTensor:
        return DTensor.from_local(
            local.contiguous(),
            mesh,
            [how],
            run_check=False,
            shape=whole,
            stride=stride,
        )

    to_owners = [Shard(0)]
    own = spread(matrices, placement).redistribute(placements=to_owners).to_local()
    if len(own):
        # Another memory layout would change the order of summation, and so the result.
        own = orthogonalize(own.contiguous())  # (k, rows, columns)
    return spread(own, Shard(0)).redistribute(placements=[placement]).to_local()
