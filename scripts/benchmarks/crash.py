"""Kill a run, a run on two ranks and a sweep many times, and compare each result with an undisturbed one.

The same command is started again after each kill. One third of the kills of a run happens during start-up, one third at
a random time of training, and one third while a checkpoint is written. With two ranks, the launcher or one of the ranks
is killed.
"""

import argparse
import csv
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from pathlib import Path

import torch

from gptmini.checkpoint import read_checkpoint, step_of
from gptmini.runs import read_lines, tags_of

from .harness import GPTMINI, Table, add_overrides, positive

INTERVAL = 20  # steps between checkpoints
STEPS_A_KILL = 60  # enough that the run does not end before its last kill
PATIENCE = 90  # seconds within which ranks must end after they lose their launcher or another rank
RUN = Path("runs", "crash", "job")  # inside the working folder of the command

# A small default run. Writing its checkpoints of 5 MB takes long enough for a kill to hit it.
OVERRIDES = (
    "model.d_model=64",
    "model.n_layers=2",
    "model.n_heads=2",
    "model.context_length=32",
    "model.dropout=0.1",
    "trainer.global_batch_size=4",
    "trainer.batch_size=2",
    "trainer.val_every_steps=100",
    "trainer.val_tokens=512",
    "trainer.threads=1",
    "trainer.timeout=20",
    "trainer.device=cpu",
    "callbacks.scalars.every_steps=5",
    f"callbacks.checkpoints.every_steps={INTERVAL}",
    "callbacks.samples.max_new_tokens=8",
    "callbacks.pictures=null",
    f"folder={RUN}",
    "++callbacks.counter._target_=counting.Counter",
)
# A callback that writes the newest step to a file, because a killed process cannot report its step. gptmini imports the
# class from the working folder of the command.
COUNTER = """
import os

import lightning as L


class Counter(L.Callback):
    def __init__(self):
        self.file = os.open("counter", os.O_WRONLY | os.O_CREAT)

    def on_train_batch_end(self, trainer, module, *batch):
        os.pwrite(self.file, trainer.global_step.to_bytes(8, "little"), 0)
"""
KINDS = ("start-up", "training", "write")  # phases in which a run is killed, in turns
START_UP = 4  # seconds per process within which a kill during start-up happens
# Prefixes of tags that may differ, because speed and memory vary between runs.
DIFFERING = ("work/",)

SWEEP = (
    "experiment=smoke",
    "trainer.max_steps=60",
    "trainer.threads=1",
    "trainer.val_every_steps=20",
    "callbacks.pictures=null",
    "callbacks.checkpoints.every_steps=10",
    "optimizer.lr=tag(log,interval(0.003,0.1))",
    "model.n_layers=1,2",
    "sweep.sampler=random",
    "sweep.trials=12",
    "--jobs",
    "2",
)
UNFINISHED = 1  # exit code of a sweep in which a trial failed or was abandoned
WHOM = ("the sweep", "a run", "everything")


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_overrides(parser)
    add = parser.add_argument
    add("--kills", type=positive, default=30, help="kills per part (default: %(default)s)")
    add("--seed", type=int, default=1, help="seed of the kill times (default: %(default)s)")


# Processes in a folder


def start(folder: Path, command: Sequence[str]) -> subprocess.Popen:
    """Start gptmini in a folder, in a new session; append its output to output.txt there."""
    with (folder / "output.txt").open("a") as output:
        return subprocess.Popen(
            [*GPTMINI, *command],
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def processes_in(folder: Path) -> list[int]:
    """Return the sorted ids of the processes whose working folder is this folder, from Linux's /proc."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").resolve() == folder.resolve():
                found.append(int(entry.name))
    return sorted(found)


def kill(process: int) -> None:
    """Kill a process; do nothing if it has already ended."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def fail(folder: Path) -> None:
    """End the benchmark with the output of the processes in a folder."""
    sys.exit((folder / "output.txt").read_text())


# A run of one process, or of two ranks


def kill_run(table: Table, arguments: argparse.Namespace, *, n_ranks: int) -> None:
    """Kill a run on n_ranks ranks many times, and compare its result with an undisturbed run."""
    steps = f"trainer.max_steps={arguments.kills * STEPS_A_KILL}"
    devices = f"trainer.devices={n_ranks}"
    command = ["train", *OVERRIDES, devices, steps, *arguments.overrides]
    with tempfile.TemporaryDirectory() as root:
        straight = Path(root, "straight")
        killed = Path(root, "killed")
        for folder in (straight, killed):
            folder.mkdir()
            (folder / "counting.py").write_text(COUNTER)

        if start(straight, command).wait():
            fail(straight)
        shutil.copytree(straight / "data", killed / "data")
        kills, lost, n_torn = kill_until_done(killed, command, arguments, n_ranks)
        bits = differing_bits(outcome(straight / RUN), outcome(killed / RUN))

    of_ranks = "" if n_ranks == 1 else f"{n_ranks} ranks: "
    kinds = ", ".join(f"{n} in {kind}" for kind, n in kills.items())
    table.add(f"{of_ranks}kills", kills.total(), kinds=kinds)
    table.add(f"{of_ranks}torn files after a kill", n_torn, goal="0")
    what = f"{of_ranks}most steps lost, with {INTERVAL} steps between checkpoints"
    table.add(what, max(lost, default=0), goal=f"at most {INTERVAL}")
    what = f"{of_ranks}bits that differ at the end in weights, optimizer, curves or samples"
    table.add(what, bits, goal="0")


def kill_until_done(
    folder: Path, command: Sequence[str], arguments: argparse.Namespace, n_ranks: int
) -> tuple[Counter, list[int], int]:
    """Start a run again until it is done, and kill one of its processes each time until all kills are used.

    Returns the number of kills by kind, the lost steps of each kill, and the number of torn checkpoints.
    """
    draws = random.Random(arguments.seed)
    kills: Counter = Counter()
    lost = []
    n_torn = 0
    while True:
        process = start(folder, command)
        killed = False
        if kills.total() < arguments.kills:
            kind = KINDS[kills.total() % len(KINDS)]
            wait_for(kind, folder, process, draws.random(), START_UP * n_ranks)
            running = processes_in(folder)
            if running and process.poll() is None:
                kill(draws.choice(running))
                kills[kind] += 1
                killed = True

        code = process.wait()
        # Ranks that lost their launcher save and end by themselves.
        deadline = time.monotonic() + PATIENCE
        while processes_in(folder):
            if time.monotonic() > deadline:
                fail(folder)
            time.sleep(0.1)

        if code == 0:
            return kills, lost, n_torn
        if not killed:
            fail(folder)
        step, n_now_torn = saved(folder)
        lost.append(reached(folder) - step)
        n_torn += n_now_torn


def wait_for(
    kind: str, folder: Path, process: subprocess.Popen, fraction: float, start_up: float
) -> None:
    """Wait until the time of a kill.

    Args:
        kind: an element of KINDS.
        folder: working folder of the process.
        process: the process to kill.
        fraction: from 0 to 1, position of the kill within the duration of the phase.
        start_up: duration of start-up in seconds.
    """
    if kind == "start-up":
        time.sleep(start_up * fraction)
        return

    before = reached(folder)
    while reached(folder) == before and process.poll() is None:
        time.sleep(0.002)
    if kind == "training":
        time.sleep(fraction)
        return

    # A write takes milliseconds, so this loop does not sleep.
    while not any((folder / RUN).glob("checkpoints/.*.tmp")) and process.poll() is None:
        pass
    time.sleep(fraction / 100)


def reached(folder: Path) -> int:
    """Return the newest finished step of the run in a folder, as COUNTER wrote it."""
    path = folder / "counter"
    return int.from_bytes(path.read_bytes(), "little") if path.exists() else 0


def saved(folder: Path) -> tuple[int, int]:
    """Return the step of the latest checkpoint, 0 if there is none, and the number of unreadable checkpoints."""
    steps = [step_of(path) for path in (folder / RUN).glob("checkpoints/*.ckpt")]
    readable = [int(step) for step in steps if step < math.inf]
    return max(readable, default=0), len(steps) - len(readable)


def outcome(run: Path) -> dict:
    """Return the result of a run by name: every tensor of the last checkpoint, and every logged curve."""
    last = read_checkpoint(run / "checkpoints" / "last.ckpt")
    values = {"steps": last["global_step"]}
    for name, tensor in last["state_dict"].items():
        values[f"weights {name}"] = tensor
    for name, moments in last["optimizer_states"][0]["state"].items():
        for moment, tensor in moments.items():
            values[f"optimizer {name} {moment}"] = tensor

    for line in read_lines(run):
        for tag, value in tags_of(line).items():
            if not tag.startswith(DIFFERING):
                values.setdefault(f"curve {tag}", []).append((line["step"], value))
    return values


def differing_bits(one: dict, other: dict) -> int:
    """Count the bits that differ between the tensors of two outcomes.

    A missing value, or a different value that is not a tensor, counts as one bit and is printed.
    """
    bits = 0
    for name in one.keys() | other.keys():
        a = one.get(name)
        b = other.get(name)
        are_tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        if are_tensors and a.shape == b.shape:
            x = a.contiguous().flatten().view(torch.uint8)  # (bytes of a,)
            y = b.contiguous().flatten().view(torch.uint8)  # (bytes of b,)
            bits += sum(int(byte).bit_count() for byte in (x ^ y)[x != y])
        elif a != b:
            bits += 1
            print(f"differs: {name}\n  {a}\n  {b}")
    return bits


# A sweep


def kill_sweep(table: Table, arguments: argparse.Namespace) -> None:
    """Kill a sweep of twelve runs many times, and compare its table with that of an undisturbed sweep."""
    draws = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as root:
        undisturbed = Path(root, "undisturbed")
        killed = Path(root, "killed")
        undisturbed.mkdir()
        killed.mkdir()

        began = time.monotonic()
        if start(undisturbed, ["sweep", *SWEEP]).wait():
            fail(undisturbed)
        most_seconds = 1.5 * (time.monotonic() - began) / arguments.kills + 6
        kills: Counter = Counter()
        while kill_in_sweep(killed, kills, arguments.kills, most_seconds, draws):
            pass

        pairs = zip_longest(table_of(killed), table_of(undisturbed))
        n_different = sum(one != other for one, other in pairs)
        n_runs = len(list(killed.glob("runs/sweep/*/config.yaml")))

    kinds = ", ".join(f"{kills[whom]} of {whom}" for whom in WHOM)
    table.add("a sweep, one of its runs, or everything: kills", kills.total(), kinds=kinds)
    what = "rows of the sweep's table that differ from an undisturbed one's"
    table.add(what, n_different, goal="0")
    table.add("runs of the sweep", n_runs, goal="12")


def kill_in_sweep(
    folder: Path, kills: Counter, n_kills: int, most_seconds: float, draws: random.Random
) -> bool:
    """Start a sweep, kill some of its processes every few seconds, and return whether it must be started again."""
    process = start(folder, ["sweep", *SWEEP])
    while kills.total() < n_kills:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=draws.uniform(2, most_seconds))
            break

        whom = draws.choice(WHOM)
        kills[whom] += 1
        runs = [pid for pid in processes_in(folder) if pid != process.pid]
        if whom == "a run":
            for pid in draws.sample(runs, min(1, len(runs))):
                kill(pid)
            continue
        kill(process.pid)
        if whom == "everything":
            for pid in runs:
                kill(pid)
        break

    code = process.wait()
    if code == UNFINISHED:
        fail(folder)
    return code != 0


def table_of(folder: Path) -> list[dict[str, str]]:
    """Return the rows of a sweep's table without times and run folders."""
    with (folder / "runs" / "sweep" / "table.csv").open() as file:
        return [row | {"seconds": "", "run": ""} for row in csv.DictReader(file)]


PARTS = {
    "run": partial(kill_run, n_ranks=1),
    "ranks": partial(kill_run, n_ranks=2),
    "sweep": kill_sweep,
}
