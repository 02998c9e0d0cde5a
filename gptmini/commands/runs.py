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
        help="folder of all runs (default: runs), or runs/NAME for the runs with this name",
    )
    parser.add_argument(
        "--sort",
        choices=("begun", "loss"),
        default="begun",
        help="begun: by start time, latest last; loss: by bits per byte, best first, because runs may have "
        "different tokens (default: begun)",
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
            f"{options.folder} {problem}; start a run with gptmini train, or pass the folder that you gave as runs_dir="
        )

    runs = [overview_of(folder) for folder in folders]
    if options.sort == "loss":
        runs.sort(key=bits_of)

    for line in aligned([HEADING, *map(cells, runs)]):
        # Overrides of somebody else's run may contain terminal escape sequences.
        print(printable(line))
    for run in runs:
        if run.reason is not None:
            print_error(run.reason)


def bits_of(run: "Overview") -> float:
    """Return bits per byte as a sort key. Runs without a validation come last.

    Runs on the same tokens are sorted by loss, because bits per byte are then proportional to the loss.
    """
    return math.inf if run.bits_per_byte is None else run.bits_per_byte


def cells(run: "Overview") -> list[str]:
    """Return the cells of a run's row."""
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
