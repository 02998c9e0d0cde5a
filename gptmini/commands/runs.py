"""List all runs in a table: gptmini runs [FOLDER] [options]."""

import json
import math
import shutil
import sys
from typing import TYPE_CHECKING, Any

from gptmini.commands.mistakes import one_line_errors, print_error
from gptmini.commands.options import parse_options
from gptmini.console.printable import printable
from gptmini.console.printing import print_lines, print_note
from gptmini.system.errors import UserError

if TYPE_CHECKING:
    from gptmini.report.overview import Overview

# On a terminal, runs are cut to leave this number of characters for overrides, such as optimizer.lr=0.001.
# But runs get at least half of the characters that they share.
LAST = 20
GAP = "  "  # between columns


OPTIONS = """
folder FOLDER?  folder that contains all runs (default: 'runs'), or runs/NAME for the runs with this name
--sort begun|loss=begun  begun: the latest run is last; loss: the run with the fewest bits per byte is first
| --wide  print the entire table on a terminal, also if it is wider than the terminal
| --json  print a JSON list with an object per run instead of a table
"""
DESCRIPTION = "List the runs in a folder with their state, steps, best loss and overrides."


@one_line_errors()
def main(arguments: list[str]) -> None:
    """Print one row per run, or a JSON list."""
    options = parse_options("runs", DESCRIPTION, OPTIONS, arguments)

    from gptmini.report.overview import overview_of
    from gptmini.runs import RUNS, every_run

    folder = options.folder or RUNS
    folders = every_run(folder)
    if not folders:
        problem = "has no runs" if folder.exists() else "does not exist"
        raise UserError(
            f"{folder} {problem}; start a run with gptmini train, or pass the folder that you set with "
            "runs_dir="
        )

    runs = [overview_of(folder) for folder in folders]
    if options.sort == "loss":
        # Runs without a validation come last.
        runs.sort(key=lambda run: math.inf if run.bits_per_byte is None else run.bits_per_byte)

    if options.json:
        print(json.dumps([plain_of(run) for run in runs], indent=2))
        return
    if sys.stdout.isatty() and not options.wide:
        print_fitted(runs, shutil.get_terminal_size().columns)
    else:
        from gptmini.console.table import aligned

        print_lines(*aligned(table_of(runs)))
    for run in runs:
        if run.reason is not None:
            print_error(run.reason)


def plain_of(run: "Overview") -> dict[str, Any]:
    """Return the summary of a run as plain values for JSON."""
    bits = run.bits_per_byte
    return {
        "run": str(run.folder),
        "state": run.state,
        "by": run.by,
        "step": run.step,
        "max_steps": run.max_steps,
        "loss": run.loss,
        "bits_per_byte": bits if bits is not None and math.isfinite(bits) else None,
        "changed": run.changed,
        "reason": run.reason,
    }


def table_of(runs: "list[Overview]", *, is_short: bool = False) -> list[list[str]]:
    """Return the headings and the cells of each run.

    A short table leaves out the causes that ended the runs, and the best losses, because it has bits per byte.
    """
    rows = [cells(run) for run in runs]
    if is_short:
        for row, run in zip(rows, runs, strict=True):
            row["state"] = run.state
            del row["best loss"]

    headings = list(rows[0])
    # If the run comes from somebody else, its overrides may contain escape sequences of a terminal.
    return [headings, *([printable(row[heading]) for heading in headings] for row in rows)]


def cells(run: "Overview") -> dict[str, str]:
    """Return the cells in the row of a run, by heading."""
    steps = ""
    if run.step is not None:
        steps = str(run.step) if run.max_steps is None else f"{run.step} of {run.max_steps}"
    return {
        "run": str(run.folder),
        "state": run.state if run.by is None else f"{run.state} by {run.by}",
        "step": steps,
        "best loss": "" if run.loss is None else f"{run.loss:.4f}",
        "bits/byte": "" if run.bits_per_byte is None else f"{run.bits_per_byte:.4f}",
        "changed": " ".join(run.changed),
    }


def print_fitted(runs: "list[Overview]", width: int) -> None:
    """Print the table in lines of at most `width` characters. Leave out details and cut cells if this is necessary."""
    from gptmini.console.table import aligned

    lines = aligned(table_of(runs))
    if max(map(len, lines)) <= width:
        print_lines(*lines)
        return

    rows = table_of(runs, is_short=True)
    widths = fitted_widths(rows, width)
    for run, *others in rows:
        row = [cut_in_the_middle(run, widths[0]), *others]
        line = GAP.join(map(cut, row, widths))
        print_lines(cut(line, width))
    print_note("--wide shows all columns")


def fitted_widths(rows: list[list[str]], width: int) -> list[int]:
    """Return the width of each column. Only the columns run and changed may be narrower than their cells."""
    from rich.cells import cell_len

    columns = zip(*rows, strict=True)
    widths = {column[0]: max(map(cell_len, column)) for column in columns}
    n_left = width - len(GAP) * (len(widths) - 1)
    n_left -= sum(n for heading, n in widths.items() if heading not in ("run", "changed"))

    widths["run"] = min(widths["run"], max(n_left - LAST, n_left // 2, len("run")))
    widths["changed"] = max(0, n_left - widths["run"])
    return list(widths.values())


def cut(text: str, width: int) -> str:
    """Return a text in exactly `width` columns of a terminal. A Chinese character takes two columns."""
    from rich.text import Text

    fitted = Text(text)
    fitted.truncate(width, overflow="ellipsis", pad=True)
    return fitted.plain


def cut_in_the_middle(text: str, width: int) -> str:
    """Return a text of at most `width` characters. The start and the end of a run's path distinguish the run."""
    if len(text) <= width:
        return text
    n_end = width // 2
    return f"{text[: width - n_end - 1]}…{text[len(text) - n_end :]}"
