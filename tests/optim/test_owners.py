"""Orthogonalization by owners equals that of one process bit for bit, with the stated number of collectives."""

from functools import partial

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode

from forked import in_processes
from gptmini.optim.muon import orthogonalize
from gptmini.optim.owners import orthogonalize_by_owner

N_ROWS, N_COLUMNS = 13, 18  # not multiples of the numbers of processes
# Placement of the matrices, and the number of collectives.
PLACEMENTS = ((Replicate(), 1), (Shard(1), 2), (Shard(2), 2))


def by_placement(matrices):
    """The result of shared for each placement."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return [shared(matrices, placement, mesh) for placement, _ in PLACEMENTS]


def shared(matrices, placement, mesh):
    """This process's part of the orthogonalized matrices, and the number of collectives."""
    whole = DTensor.from_local(matrices, mesh, [Replicate()])
    local = whole.redistribute(placements=[placement]).to_local()

    calls = []

    def five_steps(own):
        calls.append(len(own))
        return orthogonalize(own, ns_steps=5)

    with CommDebugMode() as counted:
        result = orthogonalize_by_owner(
            local, five_steps, mesh, placement=placement, shape=(N_ROWS, N_COLUMNS)
        )
    spread = DTensor.from_local(
        result, mesh, [placement], shape=matrices.shape, stride=matrices.stride()
    )
    return spread.full_tensor().tolist(), counted.get_total_counts(), sum(calls)


@pytest.mark.slow
@pytest.mark.parametrize(("n_matrices", "n_ranks"), [(3, 4), (5, 2), (6, 3)])
def test_owners_compute_what_one_process_computes(n_matrices, n_ranks, tmp_path):
    torch.manual_seed(0)
    matrices = torch.randn(n_matrices, N_ROWS, N_COLUMNS)
    expected = orthogonalize(matrices, ns_steps=5)

    of_ranks = in_processes(n_ranks, partial(by_placement, matrices), folder=tmp_path)
    for (_, n_collectives), *results in zip(PLACEMENTS, *of_ranks, strict=True):
        for result, counted, _ in results:
            assert torch.equal(torch.tensor(result), expected)
            assert counted == n_collectives

        # Every matrix is orthogonalized once, and the processes own equal numbers.
        shares = [n_own for _, _, n_own in results]
        assert sum(shares) == n_matrices
        assert max(shares) == -(-n_matrices // n_ranks)
