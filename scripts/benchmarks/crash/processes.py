"""Kill processes of runs on two processes, under every launcher, and compare the ends with undisturbed runs.

A job is what a cluster starts again: torchrun, two tasks of srun, or gptmini that starts its own processes. Its command
is typed again after each kill, with the run's folder.
"""

import argparse
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ..harness import GPTMINI, Table
from .outcomes import differing_bits, outcome
from .running import (
    INTERVAL,
    OVERRIDES,
    count_steps,
    kill,
    newest_trainer,
    processes_in,
    reached,
    said_in,
    saved,
    start,
)

N_STEPS = 1500
MAX_RESTARTS = 20  # kills after which torchrun gives a job up
PATIENCE = 90  # seconds that what is left of a job may take to end by itself
# How a job is started, and which of its processes are killed.
KINDS = (
    "torchrun, a rank",
    "torchrun, its agent",
    "srun, a task",
    "gptmini's own, a rank",
    "fsdp2, a rank",
)
OPTIONS = (
    *OVERRIDES,
    "trainer.timeout=20",
    f"trainer.max_steps={N_STEPS}",
    "folder=runs/crash/job",
)


def kill_processes(table: Table, arguments: argparse.Namespace) -> None:
    """Kill so many processes, a share of them under each launcher."""
    random_ = random.Random(arguments.seed)
    n_kills = max(1, arguments.kills // len(KINDS))
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        straight = {}
        for kind in (KINDS[0], KINDS[-1]):
            straight[kind] = root / f"straight {kind}"
            straight[kind].mkdir()
            (process,) = start_job(kind, straight[kind])
            if process.wait():
                sys.exit(said_in(straight[kind]))

        for kind in KINDS:
            # Another strategy adds up gradients in another order.
            undisturbed = straight.get(kind, straight[KINDS[0]])
            folder = root / kind.replace(" ", "-").replace(",", "")
            folder.mkdir()
            shutil.copytree(undisturbed / "data", folder / "data")
            lost, n_starts = kill_job(kind, folder, n_kills, random_)
            bits = differing_bits(outcome(undisturbed), outcome(folder))
            table.add(f"{kind}: kills", len(lost), starts=n_starts)
            what = f"{kind}: most steps lost, with {INTERVAL} between checkpoints"
            table.add(what, max(lost, default=0), goal=f"at most {INTERVAL}")
            table.add(f"{kind}: bits that differ from an undisturbed run", bits, goal="0")


def kill_job(
    kind: str, folder: Path, n_kills: int, random_: random.Random
) -> tuple[list[int], int]:
    """Start a job until its run is done, killing n_kills of its processes; return the steps that each kill cost."""
    lost = []
    n_starts = 0
    while True:
        n_starts += 1
        processes = start_job(kind, folder)
        # torchrun starts its ranks again by itself, as often as it may.
        most = MAX_RESTARTS if kind == "torchrun, a rank" else 1
        for _ in range(min(most, n_kills - len(lost))):
            wait_for_steps(folder, processes)
            time.sleep(random_.uniform(0, 2))
            victim = victim_of(kind, folder, processes, random_)
            at = reached(folder)
            if victim is None:
                break
            ranks = processes_in(folder)
            kill(victim)
            lost.append(at - saved_after(folder, processes, ranks, at))

        for process in processes:
            process.wait()
        if reached(folder) >= N_STEPS and all(process.returncode == 0 for process in processes):
            return lost, n_starts
        if n_starts > 3 * n_kills:
            sys.exit(f"{kind}: the run does not come to its end:\n{said_in(folder)}")
        end_left_overs(folder)


def start_job(kind: str, folder: Path) -> list[subprocess.Popen]:
    """Start a job: its processes, or the program that starts them."""
    train = [*GPTMINI, "train", *OPTIONS, count_steps(folder)]
    if kind.startswith("torchrun"):
        agent = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc_per_node=2",
            f"--max-restarts={MAX_RESTARTS}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{free_port()}",
            "--rdzv-id=job",
        ]
        return [start(folder, [*agent, *train[1:]])]  # torchrun starts Python itself
    if kind.startswith("srun"):
        port = str(free_port())
        return [start(folder, train, **task(rank, port)) for rank in range(2)]
    train.append("trainer.devices=2")
    if kind.startswith("fsdp2"):
        train.append("trainer.strategy=fsdp2")
    return [start(folder, train, SLURM_JOB_ID="78", SLURM_PROCID="0")]


def task(rank: int, port: str) -> dict[str, str]:
    """The variables of a task of srun, on a pretended machine of its own."""
    return {
        "SLURM_JOB_ID": "77",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": str(rank),
        "MASTER_PORT": port,
    }


def free_port() -> int:
    """A port of this machine that is free at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def victim_of(
    kind: str, folder: Path, processes: list[subprocess.Popen], random_: random.Random
) -> int | None:
    """The process to kill; None if the job has ended."""
    candidates = processes_in(folder)
    started = [process.pid for process in processes]
    if kind == "torchrun, its agent":
        candidates = [pid for pid in candidates if pid in started]
    elif kind == "torchrun, a rank":
        candidates = [pid for pid in candidates if pid not in started]
    return random_.choice(candidates) if candidates else None


def wait_for_steps(folder: Path, processes: list[subprocess.Popen]) -> None:
    """Wait until the run of a folder goes on, or its job has ended."""
    before = reached(folder)
    while reached(folder) == before and any(process.poll() is None for process in processes):
        time.sleep(0.05)


def saved_after(folder: Path, processes: list[subprocess.Popen], ranks: list[int], at: int) -> int:
    """The step from which a run goes on that has lost one of its ranks at a step: of its checkpoint at that time."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        # torchrun may have started other processes by itself, which train now.
        if newest_trainer(folder) not in ranks:
            break
        if all(process.poll() is not None for process in processes):
            break
        time.sleep(0.05)
    step, _ = saved(folder)
    return min(at, step)


def end_left_overs(folder: Path) -> None:
    """Wait for processes of a job that have lost the program that started them, and end those that stay."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and processes_in(folder):
        time.sleep(0.1)
    for pid in processes_in(folder):
        print(f"  process {pid} did not end by itself", flush=True)
        kill(pid)
