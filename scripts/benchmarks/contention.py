"""Training beside programs that keep processors busy, with threads that wait as torch or as gptmini chooses.

Runs of both kinds take turns, first on a machine that is otherwise quiet, then beside the busy programs. The speed of a
run is the median of the speeds that it writes into its metrics.jsonl. The programs are loops in Python.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gptmini.commands.compose import compose
from gptmini.commands.errors import Parser
from gptmini.commands.resumed import going_on
from gptmini.commands.settings import build_settings
from gptmini.commands.tokens import open_tokens
from gptmini.runs import read_lines
from gptmini.user_error import UserError

TRAIN = Path(__file__).resolve().parent.parent / "train.py"
UNWATCHED = ("callbacks.samples=null", "callbacks.pictures=null", "console=quiet")
BUSY = "while True: pass"
# What GNU's OpenMP does where no variable is set. Because it is set, gptmini leaves it as it is.
AS_TORCH_WAITS = {"GOMP_SPINCOUNT": "300000"}
# Variables by which a user chooses how threads wait. Importing gptmini sets the first of them in this process too.
CHOOSING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
SPEED = "work/tokens_per_second"


def main() -> None:
    """Print the speed of each run, then the medians and their ratios."""
    arguments = parse_arguments()
    steps = [f"trainer.max_steps={arguments.steps}", "callbacks.scalars.every_steps=5"]
    overrides = [*arguments.overrides, *steps, *UNWATCHED]
    config, typed = compose("train", overrides)
    config, typed = going_on(config, typed)
    open_tokens(
        config, typed, build_settings(config)
    )  # prepares the tokens before anything is timed

    for n_busy in (0, arguments.busy):
        print(f"beside {n_busy} busy programs", flush=True)
        with busy_programs(n_busy):
            compare(overrides, arguments.turns)


def parse_arguments() -> argparse.Namespace:
    """Read and check the command line."""
    parser = Parser(prog="benchmark.py contention", description=__doc__.splitlines()[0])
    parser.add_argument(
        "overrides",
        nargs="*",
        help="overrides as for gptmini train",
    )
    parser.add_argument(
        "--busy",
        type=int,
        default=1,
        help="busy programs, each of which takes one processor (default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=40,
        help="steps of each run (default: %(default)s)",
    )
    parser.add_argument(
        "--turns",
        type=int,
        default=3,
        help="runs of each kind (default: %(default)s)",
    )

    arguments = parser.parse_intermixed_args()
    if min(arguments.busy, arguments.turns) < 1:
        parser.error("--busy and --turns must be at least 1")
    if arguments.steps < 10:
        parser.error("--steps must be at least 10, because speeds are written every 5 steps")
    return arguments


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


def compare(overrides: list[str], turns: int) -> None:
    """Train in turns with threads that wait as torch has it and as gptmini has it."""
    kinds = {"torch": AS_TORCH_WAITS, "gptmini": {}}
    speeds: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(turns):
        for name, variables in kinds.items():
            speed = tokens_per_second(overrides, variables)
            speeds[name].append(speed)
            print(f"  {name:8} {speed:8,.0f} tokens/s", flush=True)

    as_torch = statistics.median(speeds["torch"])
    as_gptmini = statistics.median(speeds["gptmini"])
    print(
        f"  medians  gptmini {as_gptmini:,.0f}, torch {as_torch:,.0f} tokens/s: "
        f"{as_gptmini / as_torch:.2f} times as fast"
    )


def tokens_per_second(overrides: list[str], variables: dict[str, str]) -> float:
    """The median speed of a run of gptmini train, with further variables in its environment.

    Variables by which the user chooses how threads wait are left out, because they would decide for both kinds of runs.

    Raises UserError: the run failed.
    """
    own = {name: value for name, value in os.environ.items() if name not in CHOOSING}
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, str(TRAIN), *overrides, f"runs_dir={runs}"]
        result = subprocess.run(command, env=own | variables, check=False)
        if result.returncode != 0:
            raise UserError(f"gptmini train failed: {' '.join(overrides)}")

        (metrics,) = Path(runs).glob("*/*/metrics.jsonl")
        speeds = [line[SPEED] for line in read_lines(metrics.parent, having=SPEED)]

    # The first interval holds what is done once, such as the first use of each operation.
    return statistics.median(speeds[1:])


if __name__ == "__main__":
    main()
