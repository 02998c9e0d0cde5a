"""A table of all runs: gptmini runs [FOLDER]."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.commands.mistakes import Parser, one_line_errors, path_argument, print_mistake
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
        help="order: begun, the newest last, or loss, the best first, by bits per byte, which can be compared "
        "whatever the tokens are (default: begun)",
    )
    return parser.parse_args(arguments)


@one_line_errors()
def main(arguments: list[str] | None = None) -> None:
    """Print a row for each run."""
    options = parse(arguments)

    from gptmini.report.overview import overview_of
    from gptmini.report.tables import aligned, printable
    from gptmini.runs import every_run

    folders = every_run(options.folder)
    if not folders:
        raise UserError(
            f"{options.folder} holds no run; gptmini train begins one, and runs_dir= names its place"
        )

    runs = [overview_of(folder) for folder in folders]
    if options.sort == "loss":
        runs.sort(key=bits_of)

    for line in aligned([HEADING, *map(cells, runs)]):
        # What was typed for a run may come from somebody else, and steer the terminal.
        print(printable(line))
    for run in runs:
        if run.reason is not None:
            print_mistake(run.reason)


def bits_of(run: "Overview") -> float:
    """Bits per byte as a key to sort by; runs without a validation come last.

    Runs on the same tokens have the order of their losses, because all their losses are multiplied by one number.
    """
    return math.inf if run.bits_per_byte is None else run.bits_per_byte


def cells(run: "Overview") -> list[str]:
    """A run as the cells of its row."""
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
