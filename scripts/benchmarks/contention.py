"""Training beside programs that keep processors busy, with threads that wait as torch or as gptmini chooses.

Runs of both kinds take turns, first on a machine that is otherwise quiet, then beside the busy programs, which are
loops in Python. The speed of a run is the median of the speeds in its metrics.jsonl.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from .fits import subject_of
from .harness import UNWATCHED, Table, add_overrides, in_turns, positive, ratios, train

BUSY = "while True: pass"
# Variables by which a user chooses how threads wait. scripts/benchmark.py sets the first of them in this process too.
CHOOSING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
# What GNU's OpenMP does where no variable is set. Because it is set, gptmini leaves it as it is.
AS_TORCH_WAITS = {"GOMP_SPINCOUNT": "300000"}


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_overrides(parser)
    add = parser.add_argument
    add("--busy", type=positive, default=1, help="busy programs (default: %(default)s)")
    add("--steps", type=positive, default=40, help="steps of each run (default: %(default)s)")


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Compare the two ways of waiting beside no program, then beside the busy ones."""
    steps = [f"trainer.max_steps={arguments.steps}", "callbacks.scalars.every_steps=5"]
    overrides = [*arguments.overrides, *steps, *UNWATCHED, "console=quiet"]
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
                    "PyTorch": partial(tokens_per_second, overrides, **AS_TORCH_WAITS),
                    "gptmini": partial(tokens_per_second, overrides),
                },
            )
        table.add_median(
            f"{beside}: speed as gptmini waits, divided by that as PyTorch waits",
            ratios(speeds["gptmini"], speeds["PyTorch"]),
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
    speeds = train(*overrides, **variables).of("work/tokens_per_second")
    # The first interval holds what is done once, such as the first use of each operation.
    return statistics.median(speeds[1:] or speeds)
