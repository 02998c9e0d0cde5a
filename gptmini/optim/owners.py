"""Muon on several devices: each orthogonalizes its own matrices, and all of them get the result.

Orthogonalizing a matrix takes the whole of it, and much work. Of n matrices of one shape each device owns an equal
number, in their order; where they do not divide evenly, the last devices own fewer, or none. The result is that of one
device, bit for bit, because every matrix is orthogonalized by itself.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard


def by_owner(
    matrices: Tensor,
    orthogonalize: Callable[[Tensor], Tensor],
    mesh: DeviceMesh,
    *,
    placement: Placement,
    shape: tuple[int, int],
) -> Tensor:
    """Orthogonalize matrices of one shape, each on the device that owns it; collective.

    Where every device has all matrices, one all-gather brings the results to all. Where each has a share of every
    matrix, the shares are sent to their owners, and the results back: two exchanges.

    Args:
        matrices: what this device has of n matrices, (n, rows, columns).
        orthogonalize: maps (k, rows, columns) to that shape, each matrix by itself, for any k above 0.
        mesh: the devices, in one dimension. Each of them must call this for the same matrices.
        placement: Replicate() if each device has all matrices; Shard(1) or Shard(2) if each has some rows or columns.
        shape: rows and columns of a whole matrix.

    Returns what this device is to have of the results, in the shape of matrices.
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
        # Numbers that lie in another order would be added up in another order.
        own = orthogonalize(own.contiguous())  # (k, rows, columns)
    return spread(own, Shard(0)).redistribute(placements=[placement]).to_local()
