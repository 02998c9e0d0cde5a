"""How a process was started is read from variables that torchrun and Slurm document; contradictions are told."""

import pytest

from gptmini.launch import Launch, this_launch

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "RANK": "5",
    "LOCAL_RANK": "2",
    "GROUP_RANK": "1",
    "WORLD_SIZE": "6",
    "LOCAL_WORLD_SIZE": "3",
}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NAME": "gptmini",
    "SLURM_NTASKS": "6",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "2",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "3(x2)",
}
BATCH = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "6", "SLURM_PROCID": "0"}
OF_SIX = {"rank": 5, "local_rank": 2, "node": 1, "devices": 3, "nodes": 2}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Launch()),
        (TORCHRUN, Launch(by="torchrun", restarts=2, **OF_SIX)),
        (SRUN, Launch(by="srun", **OF_SIX)),
        (BATCH, Launch(tasks_without_srun=6)),
        # One task of srun may start further processes itself, as in a shell or in a job of submitit.
        (SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, Launch()),
        (SRUN | {"SLURM_JOB_NAME": "bash"}, Launch()),
        # torchrun inside of a job of SLURM starts the processes, and the job keeps its number.
        (SRUN | TORCHRUN, Launch(by="torchrun", restarts=2, **OF_SIX)),
    ],
    ids=["alone", "torchrun", "srun", "sbatch", "one task", "shell", "torchrun in SLURM"],
)
def test_a_launch_is_read_from_the_environment(environment, expected):
    assert this_launch(environment) == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"NODE_RANK": "1"}, "NODE_RANK=1 says that this is a further process of a run"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK=2 says that this is a further process of a run"),
        ({"RANK": "x"}, "the variable RANK must be a whole number, got 'x'"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}, "got 4 here and 6 in all"),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4,2"}, "got 6 on 2 machines"),
        (SRUN | {"SLURM_STEP_NUM_NODES": "4"}, "got 6 on 4 machines"),
    ],
)
def test_variables_that_make_no_sense_are_refused(environment, message):
    with pytest.raises(ValueError, match=message):
        this_launch(environment)
