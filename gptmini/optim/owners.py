"""Muon on several devices. Each device orthogonalizes its own matrices, and all devices get all results.

Orthogonalization needs the full matrix and much computation. So the matrices of each shape are divided among the
devices. Each device owns the same number of consecutive matrices. If the matrices cannot be divided evenly, the last
devices own fewer matrices or do not own any. The result is bit for bit the same as on one device, because every matrix
is orthogonalized separately.
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
    """Orthogonalize matrices of the same shape. Each matrix is orthogonalized on the device that owns it.

    If every device has all matrices, one all-gather distributes the results. If each device has a shard of every
    matrix, one exchange sends the shards to the owners. A second exchange sends the results back. All devices must call
    this function for the same matrices.

    Args:
        matrices: the part of n matrices that this device has, (n, rows, columns).
        orthogonalize: a function that orthogonalizes k matrices separately, for any k above 0. It maps an array of the
            shape (k, rows, columns) to an array of the same shape.
        mesh: a mesh of the devices with one dimension.
        placement: Replicate() if each device has all matrices. Shard(1) if each device has some rows of every matrix.
            Shard(2) if each device has some columns of every matrix.
        shape: number of rows and number of columns of a full matrix.

    Returns the part of the results that belongs to this device. It has the same shape as the argument matrices.
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
    owned = spread(matrices, placement).redistribute(placements=to_owners).to_local()
    if len(owned):
        # A different memory layout would change the order of summation. A different order would change the result.
        owned = orthogonalize(owned.contiguous())  # (k, rows, columns)
    return spread(owned, Shard(0)).redistribute(placements=[placement]).to_local()
