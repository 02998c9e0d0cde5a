"""Muon on several devices: each device orthogonalizes its own matrices, and all devices get the result.

Orthogonalization needs the full matrix and much computation. All matrices of one shape are divided among the devices.
Each device owns the same number of consecutive matrices. If the division leaves a remainder, the last devices own fewer
matrices or do not own any. The result is bit for bit the same as on one device, because every matrix is orthogonalized
separately.
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
    matrix, one exchange sends the shards to the owners. A second exchange sends the results back.

    Args:
        matrices: this device's part of n matrices, (n, rows, columns).
        orthogonalize: orthogonalizes k matrices separately, for any k above 0: (k, rows, columns) to the same shape.
        mesh: the devices, in one dimension. All devices must call this for the same matrices.
        placement: Replicate() if each device has all matrices; Shard(1) if it has some rows, Shard(2) if some columns.
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
        # A different memory layout would change the order of summation. This would change the result.
        own = orthogonalize(own.contiguous())  # (k, rows, columns)
    return spread(own, Shard(0)).redistribute(placements=[placement]).to_local()
