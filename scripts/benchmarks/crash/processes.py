"""Kill processes of runs on two processes, under every launcher, and compare the ends with undisturbed runs.

A job is what a cluster starts again: torchrun, two tasks of srun, or gptmini that starts its own processes. Its command
is typed again after each kill, with the run's folder.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..harness import Table
from .outcomes import (
    INTERVAL,
    OVERRIDES,
    count_steps,
    differing_bits,
    newest_trainer,
    outcome,
    reached,
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


def kill_processes(table: Table, n_kills: int, root: Path, random_: random.Random) -> None:
    """Kill n_kills processes, a share of them under each launcher."""
    straight = {}
    for kind in (KINDS[0], KINDS[-1]):
        straight[kind] = root / f"straight {kind}"
        straight[kind].mkdir()
        for process in start(kind, straight[kind]):
            if process.wait():
                sys.exit((straight[kind] / "output.txt").read_text())

    for kind in KINDS:
        # Another strategy adds up gradients in another order.
        undisturbed = straight.get(kind, straight[KINDS[0]])
        folder = root / kind.replace(" ", "-").replace(",", "")
        folder.mkdir()
        shutil.copytree(undisturbed / "data", folder / "data")
        lost, n_starts = kill_job(kind, folder, max(1, n_kills // len(KINDS)), random_)
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
        processes = start(kind, folder)
        # torchrun starts its ranks again by itself, as often as it may.
        most = MAX_RESTARTS if kind == "torchrun, a rank" else 1
        for _ in range(min(most, n_kills - len(lost))):
            before = reached(folder)
            wait_for_steps(folder, before, processes)
            time.sleep(random_.uniform(0, 2))
            victim = victim_of(kind, folder, processes, random_)
            at = reached(folder)
            if victim is None:
                break
            ranks = set(processes_in(folder))
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            lost.append(at - saved_after(folder, processes, ranks, at))
        for process in processes:
            process.wait()
        if reached(folder) >= N_STEPS and all(process.returncode == 0 for process in processes):
            return lost, n_starts
        if n_starts > 3 * n_kills:
            sys.exit(
                f"{kind}: the run does not come to its end:\n{(folder / 'output.txt').read_text()}"
            )
        end_left_overs(folder)


def start(kind: str, folder: Path) -> list[subprocess.Popen]:
    """Start a job: its processes, or the program that starts them."""
    arguments = ["-m", "gptmini", "train", *OPTIONS, count_steps(folder)]
    plain = [sys.executable, *arguments]
    if kind.startswith("torchrun"):
        agent = [
            "-m",
            "torch.distributed.run",
            "--nproc_per_node=2",
            f"--max-restarts={MAX_RESTARTS}",
        ]
        place = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=job"]
        return [spawn(folder, [sys.executable, *agent, *place, *arguments])]
    if kind.startswith("srun"):
        port = str(free_port())
        return [spawn(folder, plain, **task(rank, port)) for rank in range(2)]
    own = ["trainer.devices=2"]
    if kind.startswith("fsdp2"):
        own.append("trainer.strategy=fsdp2")
    return [spawn(folder, [*plain, *own], SLURM_JOB_ID="78", SLURM_PROCID="0")]


def spawn(folder: Path, command: list[str], **variables: str) -> subprocess.Popen:
    """Start a process whose output goes to a file of the folder."""
    with (folder / "output.txt").open("a") as output:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


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
    everything = sorted(processes_in(folder))
    started = [process.pid for process in processes]
    if kind == "torchrun, its agent":
        return started[0] if started[0] in everything else None
    if kind == "torchrun, a rank":
        everything = [pid for pid in everything if pid not in started]
    return random_.choice(everything) if everything else None


def processes_in(folder: Path) -> Iterator[int]:
    """The processes that run in a folder, as Linux lists them."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if (entry / "cwd").resolve() == folder.resolve():
                    yield int(entry.name)


def wait_for_steps(folder: Path, before: int, processes: list[subprocess.Popen]) -> None:
    """Wait until the run of a folder goes on."""
    while reached(folder) == before and any(process.poll() is None for process in processes):
        time.sleep(0.05)


def saved_after(folder: Path, processes: list[subprocess.Popen], ranks: set[int], at: int) -> int:
    """The step from which a run goes on that has lost one of its ranks at a step: of its checkpoint at that time."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        # torchrun may have started other processes by itself, which train now.
        if newest_trainer(folder) not in ranks:
            break
        if all(process.poll() is not None for process in processes):
            break
        time.sleep(0.05)
    return min(at, newest_step(folder))


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint below a folder; 0 if there is none."""
    from gptmini.checkpoint.file import read_header, step_of

    while True:
        # A process that saves at this moment gives last.ckpt another name; then all are looked at again.
        with suppress(FileNotFoundError):
            steps = [0]
            for path in folder.glob("runs/*/*/checkpoints/*.ckpt"):
                read_header(path)
                steps.append(int(step_of(path)))
            return max(steps)


def end_left_overs(folder: Path) -> None:
    """Wait for processes of a job that have lost the program that started them, and end those that stay."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and list(processes_in(folder)):
        time.sleep(0.1)
    for pid in processes_in(folder):
        print(f"  process {pid} did not end by itself", flush=True)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
