"""List all runs in a table: gptmini runs [FOLDER]."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.commands.mistakes import Parser, one_line_errors, path_argument, print_error
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from gptmini.report.overview import Overview

HEADING = ["run", "state", "step", "best loss", "bits/byte", "changed"]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(
        prog="gptmini runs",
        description="List the runs in a folder with their state, steps, best loss and overrides.",
    )

    parser.add_argument(
        "folder",
        nargs="?",
        type=path_argument,
        default=Path("runs"),
        help="folder that contains all runs (default: 'runs'), or runs/NAME for the runs with this name",
    )
    parser.add_argument(
        "--sort",
        choices=("begun", "loss"),
        default="begun",
        help="'begun' sorts the runs by start time, and the latest run is last; 'loss' sorts them by bits per byte, "
        "and the best run is first; bits per byte can be compared even if runs have different tokens (default: begun)",
    )
    return parser.parse_args(arguments)


@one_line_errors()
def main(arguments: list[str] | None = None) -> None:
    """Print one row per run."""
    options = parse(arguments)

    from gptmini.report.overview import overview_of
    from gptmini.report.tables import aligned, printable
    from gptmini.runs import every_run

    folders = every_run(options.folder)
    if not folders:
        problem = "has no runs" if options.folder.exists() else "does not exist"
        raise UserError(
            f"{options.folder} {problem}; start a run with gptmini train, or pass the folder that you set with "
            "runs_dir="
        )

    runs = [overview_of(folder) for folder in folders]
    if options.sort == "loss":
        runs.sort(key=bits_of)

    for line in aligned([HEADING, *map(cells, runs)]):
        # If the run comes from somebody else, its overrides may contain escape sequences of a terminal.
        print(printable(line))
    for run in runs:
        if run.reason is not None:
            print_error(run.reason)


def bits_of(run: "Overview") -> float:
    """Return the bits per byte of a run as a sort key. Runs without a validation come last.

    If runs have the same tokens, their bits per byte are proportional to their losses. The order of such runs is the
    order of their losses.
    """
    return math.inf if run.bits_per_byte is None else run.bits_per_byte


def cells(run: "Overview") -> list[str]:
    """Return the cells in the row of a run."""
    steps = ""
    if run.step is not None:
        steps = str(run.step) if run.max_steps is None else f"{run.step} of {run.max_steps}"
    return [
        str(run.folder),
        run.state if run.by is None else f"{run.state} by {run.by}",
        steps,
        "" if run.loss is None else f"{run.loss:.4f}",
        "" if run.bits_per_byte is None else f"{run.bits_per_byte:.4f}",
        " ".join(run.changed),
    ]
