"""Kill a sweep of twelve runs again and again, and compare its table with that of an undisturbed one."""

import argparse
import csv
import random
import subprocess
import sys
import tempfile
import time
from itertools import zip_longest
from pathlib import Path

from ..harness import GPTMINI, Table
from .running import kill, processes_in, said_in, start

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


def kill_sweeps(table: Table, arguments: argparse.Namespace) -> None:
    """Kill a sweep so many times, and compare its table with the undisturbed one's."""
    command = [*GPTMINI, "sweep", *OPTIONS, "--jobs", "2"]
    with tempfile.TemporaryDirectory() as root:
        undisturbed = Path(root, "sweep")
        undisturbed.mkdir()
        began = time.monotonic()
        start(undisturbed, command).wait()
        seconds = time.monotonic() - began
        expected = table_of(undisturbed)

        folder = Path(root, "sweep-killed")
        folder.mkdir()
        patience = 1.5 * seconds / arguments.kills + 6
        kills = kill_until_done(
            folder,
            command,
            n_kills=arguments.kills,
            patience=patience,
            random_=random.Random(arguments.seed),
        )
        found = table_of(folder)
        n_runs = len(list(folder.glob("runs/sweep/*/config.yaml")))

    kinds = ", ".join(f"{kills.count(whom)} of {whom}" for whom in WHOM)
    table.add("a sweep, one of its runs, or everything: kills", len(kills), kinds=kinds)
    what = "rows of the sweep's table that differ from an undisturbed one's"
    n_different = sum(one != other for one, other in zip_longest(found, expected))
    table.add(what, n_different, goal="0")
    table.add("runs of the sweep", n_runs, goal="12")


def kill_until_done(
    folder: Path, command: list[str], *, n_kills: int, patience: float, random_: random.Random
) -> list[str]:
    """Start a sweep until it is done, and kill something of it every few seconds; return what was killed."""
    kills: list[str] = []
    while True:
        process = start(folder, command)
        while len(kills) < n_kills:
            try:
                process.wait(timeout=random_.uniform(2, patience))
                break
            except subprocess.TimeoutExpired:
                whom = random_.choice(WHOM)
                kill_some(whom, process.pid, folder, random_)
                kills.append(whom)
                if whom != "a run":
                    break

        code = process.wait()
        if code == UNFINISHED:
            sys.exit(said_in(folder))
        if code == 0:
            return kills


def kill_some(whom: str, sweep: int, folder: Path, random_: random.Random) -> None:
    """Kill the sweep itself, one process of a run, or everything."""
    others = [pid for pid in processes_in(folder) if pid != sweep]
    chosen = [sweep]
    if whom == "a run":
        chosen = [random_.choice(others)] if others else []
    elif whom == "everything":
        chosen += others
    for pid in chosen:
        kill(pid)


def table_of(folder: Path) -> list[dict[str, str]]:
    """The rows of a sweep's table, without times and the places of runs."""
    with (folder / "runs" / "sweep" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        del row["seconds"], row["run"]
    return rows
