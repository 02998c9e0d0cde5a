"""A table of all runs: gptmini runs [FOLDER]."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.commands.errors import Parser, one_line_errors, path_argument, print_mistake
from gptmini.commands.multirun import aligned
from gptmini.commands.start_up import starting_up
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from gptmini.report.overview import Overview

HEADING = ["run", "state", "step", "best loss", "bits/byte", "changed"]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(
        prog="gptmini runs",
        description="List the runs in a folder: what was changed, how far each is, and how well it does.",
    )

    parser.add_argument(
        "folder",
        nargs="?",
        type=path_argument,
        default=Path("runs"),
        help="folder of all runs (default: runs), or runs/NAME for those of one name",
    )
    parser.add_argument(
        "--sort",
        choices=("begun", "loss"),
        default="begun",
        help="order: begun, the newest last, or loss, the best first (default: begun)",
    )
    return parser.parse_args(arguments)


@one_line_errors()
@starting_up()
def main(arguments: list[str] | None = None) -> None:
    """Print a row for each run."""
    options = parse(arguments)

    from gptmini.report.overview import overview_of
    from gptmini.run_folder import every_run

    folders = every_run(options.folder)
    if not folders:
        raise UserError(
            f"{options.folder} holds no run; gptmini train begins one, and runs_dir= names its place"
        )

    runs = [overview_of(folder) for folder in folders]
    if options.sort == "loss":
        runs.sort(key=_rank)

    for line in aligned([HEADING, *map(_cells, runs)]):
        print(line)
    for run in runs:
        if run.reason is not None:
            print_mistake(run.reason)


def _rank(run: "Overview") -> float:
    """The place of a run among others, as a key to sort by: those without a loss come last."""
    return math.inf if run.loss is None else run.loss


def _cells(run: "Overview") -> list[str]:
    """A run as the cells of its row."""
    steps = ""
    if run.step is not None:
        steps = str(run.step) if run.max_steps is None else f"{run.step} of {run.max_steps}"
    return [
        f"{run.folder.parent.name}/{run.folder.name}",
        run.state,
        steps,
        "" if run.loss is None else f"{run.loss:.4f}",
        "" if run.bits_per_byte is None else f"{run.bits_per_byte:.4f}",
        " ".join(run.changed),
    ]
