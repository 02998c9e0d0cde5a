"""Kill a sweep of twelve runs again and again, and compare its table with that of an undisturbed one."""

import csv
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

from ..harness import Table
from .processes import processes_in

OPTIONS = (
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
)
UNFINISHED = 1  # exit code of a sweep of which a trial has failed or was given up
WHOM = ("the sweep", "a run", "everything")


def kill_sweeps(table: Table, n_kills: int, root: Path, random_: random.Random) -> None:
    """Kill a sweep n_kills times, and compare its table with the undisturbed one's."""
    undisturbed = root / "sweep"
    undisturbed.mkdir()
    began = time.monotonic()
    begin(undisturbed).wait()
    seconds = time.monotonic() - began
    expected = table_of(undisturbed)

    folder = root / "sweep-killed"
    folder.mkdir()
    by_whom = dict.fromkeys(WHOM, 0)
    n_starts = 0
    while True:
        n_starts += 1
        process = begin(folder)
        while sum(by_whom.values()) < n_kills and process.poll() is None:
            try:
                process.wait(timeout=random_.uniform(2, 1.5 * seconds / n_kills + 6))
                break
            except subprocess.TimeoutExpired:
                whom = random_.choice(WHOM)
                kill(whom, process, folder, random_)
                by_whom[whom] += 1
                if whom != "a run":
                    break
        code = process.wait()
        if code == UNFINISHED:
            sys.exit((folder / "output.txt").read_text())
        if code == 0:
            break

    found = table_of(folder)
    n_different = sum(one != other for one, other in zip_longest(found, expected))
    n_runs = len(list(folder.glob("runs/sweep/*/config.yaml")))
    kinds = ", ".join(f"{number} of {whom}" for whom, number in by_whom.items())
    what = "a sweep, one of its runs, or everything: kills"
    table.add(what, sum(by_whom.values()), kinds=kinds, starts=n_starts)
    what = "rows of the sweep's table that differ from an undisturbed one's"
    table.add(what, n_different, goal="0")
    table.add("runs of the sweep", n_runs, goal="12")


def begin(folder: Path) -> subprocess.Popen:
    """Start the sweep, two runs at a time."""
    command = [sys.executable, "-m", "gptmini", "sweep", *OPTIONS, "--jobs", "2"]
    with (folder / "output.txt").open("a") as output:
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)


def kill(whom: str, process: subprocess.Popen, folder: Path, random_: random.Random) -> None:
    """Kill the sweep itself, one process of a run, or everything."""
    others = [pid for pid in processes_in(folder) if pid != process.pid]
    chosen = [process.pid]
    if whom == "a run":
        chosen = [random_.choice(others)] if others else []
    elif whom == "everything":
        chosen += others
    for pid in chosen:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def table_of(folder: Path) -> list[dict[str, str]]:
    """The rows of a sweep's table, without times and the places of runs."""
    with (folder / "runs" / "sweep" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        del row["seconds"], row["run"]
    return rows
