"""How this process was started: alone, or as one of the processes of a run.

The processes of a run are started by gptmini itself on one machine, and by torchrun or by srun of SLURM on several.
Each of the three says in the environment which of the processes this one is.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gptmini.user_error import UserError

# Set by gptmini for the processes that it starts itself. The other variables of such a process are those of torchrun.
OWN = "GPTMINI_LAUNCHED"
# Job names by which SLURM users, and Lightning, know a shell in which commands are typed.
INTERACTIVE = ("bash", "interactive")
# Variables that number a process or a machine, and that only a program which starts processes sets.
NUMBERS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK")
HOW_TO_START = "start a run on several machines with torchrun or srun, as docs/scaling.md shows"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Which process of a run this one is, and who has started it."""

    # gptmini, torchrun or srun; None: the user, who has started this process alone.
    by: str | None = None
    rank: int = 0  # number of this process in the run, from 0
    local_rank: int = 0  # number of this process on its machine, from 0
    node: int = 0  # number of this machine, from 0
    devices: int | None = None  # processes on each machine; None where by is None
    nodes: int | None = None  # machines; None where by is None
    restarts: int = 0  # how often torchrun has started the processes again
    # Tasks of a SLURM job whose script has called gptmini without srun; 1 elsewhere.
    tasks_without_srun: int = 1

    @property
    def is_further(self) -> bool:
        """Whether this is another process of a run than the first, which checks, decides and speaks for all."""
        return self.rank > 0

    @property
    def starts_all(self) -> bool:
        """Whether torchrun or srun has started all processes of the run."""
        return self.by in ("torchrun", "srun")


def this_launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Read from the environment which process of a run this one is.

    Raises UserError: the variables contradict each other, the machines have different numbers of processes, or a
    process of a run was started by something else than gptmini, torchrun or srun.
    """
    if "TORCHELASTIC_RUN_ID" in environment and "RANK" in environment:
        return _of_torchrun(environment, "torchrun")
    if environment.get(OWN):
        return _of_torchrun(environment, "gptmini")

    in_slurm = "SLURM_JOB_ID" in environment and "SLURM_PROCID" in environment
    if in_slurm and environment.get("SLURM_JOB_NAME") not in INTERACTIVE:
        n_tasks = _number(environment, "SLURM_STEP_NUM_TASKS", 1)
        if n_tasks > 1:
            return _of_srun(environment, n_tasks)
        is_in_step = "SLURM_STEP_NUM_TASKS" in environment
        if not is_in_step:
            return Launch(tasks_without_srun=_number(environment, "SLURM_NTASKS", 1))
        return Launch()

    for name in NUMBERS:
        if _number(environment, name, 0) > 0:
            raise UserError(
                f"{name}={environment[name]} says that this is a further process of a run; {HOW_TO_START}"
            )
    return Launch()


def further_environment(rank: int, n_ranks: int, *, port: int) -> dict[str, str]:
    """Variables for a further process that gptmini starts on this machine; port is where the first process answers."""
    return {
        OWN: "1",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(n_ranks),
        "LOCAL_WORLD_SIZE": str(n_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # torch would print pages of warnings when the first process is killed.
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
    }


def _of_torchrun(environment: Mapping[str, str], by: str) -> Launch:
    """The launch that torchrun's variables describe."""
    rank = _number(environment, "RANK")
    n_ranks = _number(environment, "WORLD_SIZE")
    devices = _number(environment, "LOCAL_WORLD_SIZE")

    if devices < 1 or n_ranks % devices:
        raise UserError(
            f"every machine must have as many processes as this one, got {devices} here and "
            f"{n_ranks} in all; give torchrun the same --nproc_per_node everywhere"
        )

    return Launch(
        by=by,
        rank=rank,
        local_rank=_number(environment, "LOCAL_RANK"),
        node=_number(environment, "GROUP_RANK", 0),
        devices=devices,
        nodes=n_ranks // devices,
        restarts=_number(environment, "TORCHELASTIC_RESTART_COUNT", 0),
    )


def _of_srun(environment: Mapping[str, str], n_tasks: int) -> Launch:
    """The launch that the variables of a task of srun describe."""
    n_nodes = _number(environment, "SLURM_STEP_NUM_NODES", _number(environment, "SLURM_NNODES", 1))
    shares = environment.get("SLURM_STEP_TASKS_PER_NODE", "")

    # As 3(x2) for two machines with three tasks each; with 3,2 a machine has fewer.
    is_even = re.fullmatch(r"\d+(\(x\d+\))?", shares) is not None or not shares
    if not is_even or n_nodes < 1 or n_tasks % n_nodes:
        raise UserError(
            f"every machine must have as many tasks as the others, got {n_tasks} on {n_nodes} machines "
            f"({shares or 'unknown shares'}); give srun --ntasks-per-node"
        )

    return Launch(
        by="srun",
        rank=_number(environment, "SLURM_PROCID"),
        local_rank=_number(environment, "SLURM_LOCALID"),
        node=_number(environment, "SLURM_NODEID", 0),
        devices=n_tasks // n_nodes,
        nodes=n_nodes,
    )


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A variable as a whole number of at least 0; UserError if it is none, or absent without a default."""
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None or not re.fullmatch(r"\d{1,9}", text):
        raise UserError(f"the variable {name} must be a whole number, got {text!r}")
    return int(text)
