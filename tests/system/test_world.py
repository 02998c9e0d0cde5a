"""The rank of a process is read from the documented variables of torchrun and SLURM."""

import pytest

from gptmini.system.world import World, this_world

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "5",
    "LOCAL_RANK": "2",
    "WORLD_SIZE": "6",
    "LOCAL_WORLD_SIZE": "3",
}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NAME": "gptmini",
    "SLURM_NTASKS": "6",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "2",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_NUM_NODES": "2",
}
BATCH = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "6", "SLURM_PROCID": "0"}
OF_SIX = {"rank": 5, "local_rank": 2, "size": 6, "devices": 3}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, World()),
        (TORCHRUN, World(launcher="torchrun", **OF_SIX)),
        (SRUN, World(launcher="srun", **OF_SIX)),
        (BATCH, World(tasks_without_srun=6)),
        # A single task of srun may start ranks itself.
        (SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, World()),
        (SRUN | {"SLURM_JOB_NAME": "bash"}, World()),
        # torchrun inside a SLURM job starts the ranks.
        (SRUN | TORCHRUN, World(launcher="torchrun", **OF_SIX)),
    ],
    ids=["alone", "torchrun", "srun", "sbatch", "one task", "shell", "torchrun in SLURM"],
)
def test_a_world_is_read_from_the_environment(environment, expected):
    assert this_world(environment) == expected
    assert this_world(environment).nodes == (2 if expected.size == 6 else 1)
