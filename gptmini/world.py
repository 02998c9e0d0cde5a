"""The ranks of a run, and which of them this process is, as torchrun or srun of SLURM says it in the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

# Job names by which SLURM users, and Lightning, know a shell in which commands are typed.
INTERACTIVE = ("bash", "interactive")


@dataclass(frozen=True, kw_only=True)
class World:
    """The ranks of a run: the processes that train it together, each on one device."""

    launcher: str | None = None  # torchrun or srun; None: the user has started this process alone
    rank: int = 0  # of this process, from 0
    local_rank: int = 0  # among the ranks of this machine, from 0
    size: int = 1  # number of ranks
    devices: int = 1  # ranks on each machine
    # Tasks of a SLURM job whose script has called gptmini without srun; 1 elsewhere.
    tasks_without_srun: int = 1

    @property
    def nodes(self) -> int:
        """Number of machines."""
        return self.size // self.devices


def this_world(environment: Mapping[str, str] = os.environ) -> World:
    """Read from the environment which rank of a run this process is.

    gptmini starts the ranks of one machine by torchrun's own launcher.
    """

    def number(name: str) -> int:
        return int(environment[name])

    if "TORCHELASTIC_RUN_ID" in environment:
        return World(
            launcher="torchrun",
            rank=number("RANK"),
            local_rank=number("LOCAL_RANK"),
            size=number("WORLD_SIZE"),
            devices=number("LOCAL_WORLD_SIZE"),
        )

    in_slurm = "SLURM_PROCID" in environment and "SLURM_NTASKS" in environment
    if not in_slurm or environment.get("SLURM_JOB_NAME") in INTERACTIVE:
        return World()
    if "SLURM_STEP_NUM_TASKS" not in environment:
        return World(tasks_without_srun=number("SLURM_NTASKS"))

    n_tasks = number("SLURM_STEP_NUM_TASKS")
    if n_tasks == 1:
        return World()
    return World(
        launcher="srun",
        rank=number("SLURM_PROCID"),
        local_rank=number("SLURM_LOCALID"),
        size=n_tasks,
        devices=n_tasks // number("SLURM_STEP_NUM_NODES"),
    )


def usable_processors() -> int:
    """Number of processors that this process may use."""
    # Windows and macOS do not tell which ones these are.
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return len(usable) or os.cpu_count() or 1
