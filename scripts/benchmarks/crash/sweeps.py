"""Kill a sweep of twelve runs again and again, and compare its table with that of an undisturbed one."""

import csv
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

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


def kill_sweeps(n_kills: int, root: Path, random_: random.Random) -> bool:
    """Kill a sweep n_kills times; print what came of it and return whether its table is the undisturbed one's."""
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
            print((folder / "output.txt").read_text())
            return False
        if code == 0:
            break

    found = table_of(folder)
    n_runs = len(list(folder.glob("runs/sweep/*/config.yaml")))
    kills = ", ".join(f"{number} of {whom}" for whom, number in by_whom.items())
    same = found == expected
    for one, other in zip(found, expected, strict=False):
        if one != other:
            print("  differs:", one, other)
    print(f"sweep                    {kills}, {n_starts} starts, {n_runs} runs")
    print(f"  table                  {len(found)} trials, {'the same' if same else 'another one'}")
    has_killed = sum(by_whom.values()) == n_kills
    return has_killed and same and n_runs == len(expected) == 12


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
