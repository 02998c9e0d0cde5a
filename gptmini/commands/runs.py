"""List all runs in a table: gptmini runs [FOLDER] [options]."""

import json
import shutil
import sys
from typing import Any

from rich.cells import cell_len

from gptmini.commands.mistakes import one_line_errors, print_error
from gptmini.commands.options import parse_options
from gptmini.console.printable import printable
from gptmini.console.printing import print_lines, print_note
from gptmini.console.table import GAP, aligned, cut, widths_of
from gptmini.report import Overview, overview_of
from gptmini.runs import RUNS, every_run
from gptmini.system.errors import UserError

# On a terminal, runs are cut to leave this number of characters for overrides, such as optimizer.lr=0.001.
# But runs get at least half of the characters that they share.
LAST = 20

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
        runs.sort(key=lambda run: run.rank)

    if options.json:
        print(json.dumps([plain_of(run) for run in runs], indent=2))
        return
    lines = aligned(table_of(runs))
    width = shutil.get_terminal_size().columns
    is_too_wide = max(map(cell_len, lines)) > width
    if is_too_wide and sys.stdout.isatty() and not options.wide:
        print_lines(*short_lines(runs, width))
        print_note("--wide shows all columns")
    else:
        print_lines(*lines)
    for run in runs:
        if run.reason is not None:
            print_error(run.reason)


def plain_of(run: Overview) -> dict[str, Any]:
    """Return the summary of a run as plain values for JSON."""
    return {
        "run": str(run.folder),
        "state": run.state,
        "by": run.by,
        "step": run.step,
        "max_steps": run.max_steps,
        "loss": run.loss,
        "bits_per_byte": run.bits_per_byte,
        "changed": run.changed,
        "reason": run.reason,
    }


def table_of(runs: list[Overview], *, is_short: bool = False) -> list[list[str]]:
    """Return the headings and the cells of each run.

    A short table leaves out the causes that ended the runs, and the best losses, because it has bits per byte.
    """
    rows = []
    for run in runs:
        row = {
            "run": str(run.folder),
            "state": run.state if run.by is None or is_short else f"{run.state} by {run.by}",
            "step": "" if run.step is None else f"{run.step} of {run.max_steps}",
            "best loss": "" if run.loss is None else f"{run.loss:.4f}",
            "bits/byte": "" if run.bits_per_byte is None else f"{run.bits_per_byte:.4f}",
            "changed": " ".join(run.changed),
        }
        if is_short:
            del row["best loss"]
        rows.append(row)

    # If the run comes from somebody else, its overrides may contain escape sequences of a terminal.
    return [list(rows[0]), *([printable(cell) for cell in row.values()] for row in rows)]


def short_lines(runs: list[Overview], width: int) -> list[str]:
    """Return the short table in lines of at most `width` columns. Runs and overrides are cut if this is necessary."""
    rows = table_of(runs, is_short=True)
    first, *middle, _ = widths_of(rows)
    n_left = width - len(GAP) * (len(middle) + 1) - sum(middle)
    first = min(first, max(n_left - LAST, n_left // 2, len("run")))
    rows = [[cut_in_the_middle(run, first), *others] for run, *others in rows]
    # The last column, of the overrides, takes the rest of the line.
    return [cut(line, width) for line in aligned(rows)]


def cut_in_the_middle(text: str, width: int) -> str:
    """Return a text of at most `width` characters. The start and the end of a run's path distinguish the run."""
    if len(text) <= width:
        return text
    n_end = width // 2
    return f"{text[: width - n_end - 1]}…{text[len(text) - n_end :]}"
