"""Read the ranks of a run and the rank of this process from the environment variables of torchrun or SLURM's srun."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

# A SLURM job with one of these names is an interactive shell. Lightning checks for the same names.
INTERACTIVE = ("bash", "interactive")


@dataclass(frozen=True, kw_only=True)
class World:
    """The ranks of a run. The ranks are the processes that train the run together. Each rank uses one device."""

    launcher: str | None = None  # torchrun or srun; None if no launcher started this process
    rank: int = 0  # rank of this process, from 0
    local_rank: int = 0  # rank among the processes of this machine, from 0
    size: int = 1  # number of ranks
    devices: int = 1  # ranks on each machine
    # The number of tasks of a SLURM job, if the script of the job called gptmini without srun. Otherwise 1.
    tasks_without_srun: int = 1

    @property
    def nodes(self) -> int:
        """The number of machines."""
        return self.size // self.devices


def this_world(environment: Mapping[str, str] = os.environ) -> World:
    """Read the rank of this process from the environment. gptmini's own ranks look like ranks of torchrun."""
    if "TORCHELASTIC_RUN_ID" in environment:
        return World(
            launcher="torchrun",
            rank=int(environment["RANK"]),
            local_rank=int(environment["LOCAL_RANK"]),
            size=int(environment["WORLD_SIZE"]),
            devices=int(environment["LOCAL_WORLD_SIZE"]),
        )

    in_slurm = "SLURM_PROCID" in environment and "SLURM_NTASKS" in environment
    if not in_slurm or environment.get("SLURM_JOB_NAME") in INTERACTIVE:
        return World()
    if "SLURM_STEP_NUM_TASKS" not in environment:
        return World(tasks_without_srun=int(environment["SLURM_NTASKS"]))

    n_tasks = int(environment["SLURM_STEP_NUM_TASKS"])
    if n_tasks == 1:
        return World()
    return World(
        launcher="srun",
        rank=int(environment["SLURM_PROCID"]),
        local_rank=int(environment["SLURM_LOCALID"]),
        size=n_tasks,
        devices=n_tasks // int(environment["SLURM_STEP_NUM_NODES"]),
    )


def cpu_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    # Windows and macOS have no sched_getaffinity.
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return len(usable) or os.cpu_count() or 1
