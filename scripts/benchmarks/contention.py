"""Training beside programs that keep processors busy, with threads that wait as torch or as gptmini chooses.

Runs of both kinds take turns, first on a machine that is otherwise quiet, then beside the busy programs, which are
loops in Python. The speed of a run is the median of the speeds in its metrics.jsonl.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from .harness import GPTMINI, Table, in_turns, output_of, ratios, subject_of

UNWATCHED = ("callbacks.samples=null", "callbacks.pictures=null", "console=quiet")
BUSY = "while True: pass"
# Variables by which a user chooses how threads wait. Importing gptmini sets the first of them in this process too.
CHOOSING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
# What GNU's OpenMP does where no variable is set. Because it is set, gptmini leaves it as it is.
AS_TORCH_WAITS = {"GOMP_SPINCOUNT": "300000"}
SPEED = "work/tokens_per_second"


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add = parser.add_argument
    add("overrides", nargs="*", help="overrides as for gptmini train")
    add("--busy", type=int, default=1, help="busy programs (default: %(default)s)")
    add("--steps", type=int, default=40, help="steps of each run (default: %(default)s)")


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Compare the two ways of waiting beside no program, then beside the busy ones."""
    steps = [f"trainer.max_steps={arguments.steps}", "callbacks.scalars.every_steps=5"]
    overrides = [*arguments.overrides, *steps, *UNWATCHED]
    subject_of(overrides)  # prepares the tokens before anything is timed
    for name in CHOOSING:
        os.environ.pop(name, None)

    method = f"{arguments.turns} turns of {arguments.steps} steps"
    for n_busy in (0, arguments.busy):
        beside = f"beside {n_busy} busy program{'' if n_busy == 1 else 's'}" if n_busy else "alone"
        with busy_programs(n_busy):
            speeds = in_turns(
                arguments.turns,
                {
                    "torch": partial(tokens_per_second, overrides, **AS_TORCH_WAITS),
                    "gptmini": partial(tokens_per_second, overrides),
                },
            )
        table.add_median(
            f"{beside}: speed as gptmini waits, divided by that as PyTorch waits",
            ratios(speeds["gptmini"], speeds["torch"]),
            goal="at least 4" if n_busy else "at least 0.97",
            method=method,
        )
        for name, found in speeds.items():
            table.add_median(f"{beside}: tokens a second as {name} waits", found, method=method)


@contextmanager
def busy_programs(number: int) -> Iterator[None]:
    """Keep so many processors busy during the block."""
    programs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(number)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def tokens_per_second(overrides: list[str], **variables: str) -> float:
    """The median speed of a run of gptmini train, with further variables in its environment."""
    from gptmini.runs import read_lines

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        output_of([*GPTMINI, "train", *overrides, f"folder={run}"], cwd=Path.cwd(), **variables)
        speeds = [line[SPEED] for line in read_lines(run, having=SPEED)]

    # The first interval holds what is done once, such as the first use of each operation.
    return statistics.median(speeds[1:] or speeds)
