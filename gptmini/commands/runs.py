"""List all runs in a table, delete runs, or label a run: gptmini runs [FOLDER] [options]."""

import argparse
import json
import math
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.commands.arguments import print_resolved_run
from gptmini.commands.mistakes import Parser, one_line_errors, path_argument, print_error
from gptmini.job.printing import print_lines, print_note
from gptmini.printable import printable
from gptmini.process import restore_gc_and_sigint
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from gptmini.report.overview import Overview

# On a terminal, the table leaves out details unless this number of characters is left for the last column.
LEAST = 24
# On a terminal, runs are cut to leave this number of characters for tags and overrides, such as optimizer.lr=0.001.
# But runs get at least half of the characters that they share.
LAST = 20
GAP = "  "  # between columns


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(
        prog="gptmini runs",
        description="List the runs in a folder with their state, steps, best loss, tags and overrides. Delete runs, or "
        "label a run.",
    )

    # What to do: list the runs of a folder, delete runs, or label a run.
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "folder",
        nargs="?",
        type=path_argument,
        help="folder that contains all runs (default: 'runs'), or runs/NAME for the runs with this name",
    )
    action.add_argument(
        "--delete",
        nargs="+",
        type=path_argument,
        metavar="RUN",
        help="delete these runs with their checkpoints; gptmini asks first",
    )
    action.add_argument(
        "--tag",
        nargs=2,
        metavar=("RUN", "TEXT"),
        help="label a run with a text, which the table shows; an empty text removes the label",
    )

    # The table.
    parser.add_argument(
        "--sort",
        choices=("begun", "loss"),
        help="'begun' sorts the runs by start time, and the latest run is last; 'loss' sorts them by bits per byte, "
        "and the best run is first; bits per byte can be compared even if runs have different tokens (default: begun)",
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument(
        "--wide",
        action="store_true",
        help="print the entire table on a terminal, also if it is wider than the terminal",
    )
    shape.add_argument(
        "--json",
        action="store_true",
        help="print a JSON list with an object per run instead of a table",
    )

    parser.add_argument("--yes", action="store_true", help="with --delete: do not ask")

    options = parser.parse_args(arguments)
    is_list = options.delete is None and options.tag is None
    if not is_list and (options.sort or options.wide or options.json):
        parser.error("--sort, --wide and --json apply only to the table of runs")
    if options.yes and options.delete is None:
        parser.error("--yes applies only to --delete")
    return options


@one_line_errors()
def main(arguments: list[str] | None = None) -> None:
    """Print one row per run, delete runs, or label a run."""
    options = parse(arguments)
    if options.delete is not None:
        delete(options.delete, is_sure=options.yes)
    elif options.tag is not None:
        tag(*options.tag)
    else:
        show(options)


def show(options: argparse.Namespace) -> None:
    """Print one row per run, or a JSON list."""
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
        runs.sort(key=bits_of)

    if options.json:
        print(json.dumps([plain_of(run) for run in runs], indent=2))
        return
    if sys.stdout.isatty() and not options.wide:
        print_fitted(runs, shutil.get_terminal_size().columns)
    else:
        from gptmini.report.tables import aligned

        print_lines(*aligned(table_of(runs)))
    for run in runs:
        if run.reason is not None:
            print_error(run.reason)


def bits_of(run: "Overview") -> float:
    """Return the bits per byte of a run as a sort key. Runs without a validation come last.

    If runs have the same tokens, their bits per byte are proportional to their losses. The order of such runs is the
    order of their losses.
    """
    return math.inf if run.bits_per_byte is None else run.bits_per_byte


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
        "tag": run.tag,
        "changed": run.changed,
        "reason": run.reason,
    }


def table_of(runs: "list[Overview]", *, is_short: bool = False) -> list[list[str]]:
    """Return the headings and the cells of each run. There is a column for tags if a run has a tag.

    A short table leaves out the causes that ended the runs, and the best losses, because it has bits per byte.
    """
    rows = [cells(run) for run in runs]
    left_out = set()
    if is_short:
        left_out.add("best loss")
        for row, run in zip(rows, runs, strict=True):
            row["state"] = run.state
    if not any(run.tag for run in runs):
        left_out.add("tag")

    headings = [heading for heading in rows[0] if heading not in left_out]
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
        "tag": run.tag,
        "changed": " ".join(run.changed),
    }


def print_fitted(runs: "list[Overview]", width: int) -> None:
    """Print the table in lines of at most `width` characters. Leave out details and cut cells if this is necessary."""
    from gptmini.report.tables import aligned

    rows = table_of(runs)
    lines = aligned(rows)
    if max(map(len, lines)) <= width:
        print_lines(*lines)
        return

    others = aligned([row[:-1] for row in rows])  # the table without the overrides
    if width - max(map(len, others)) < LEAST:
        rows = table_of(runs, is_short=True)
    widths = fitted_widths(rows, width)
    for run, *others in rows:
        row = [cut_in_the_middle(run, widths[0]), *others]
        line = GAP.join(map(cut, row, widths))
        print_lines(cut(line, width))
    print_note("--wide shows all columns")


def fitted_widths(rows: list[list[str]], width: int) -> list[int]:
    """Return the width of each column. Only the columns run, tag and changed may be narrower than their cells."""
    from rich.cells import cell_len

    columns = zip(*rows, strict=True)
    widths = {column[0]: max(map(cell_len, column)) for column in columns}
    shared = ("run", "tag", "changed")
    n_left = width - len(GAP) * (len(widths) - 1)
    n_left -= sum(n for heading, n in widths.items() if heading not in shared)

    widths["run"] = min(widths["run"], max(n_left - LAST, n_left // 2, len("run")))
    n_left = max(0, n_left - widths["run"])
    if "tag" in widths:
        widths["tag"] = min(widths["tag"], n_left // 2)
        n_left -= widths["tag"]
    widths["changed"] = n_left
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


def tag(run: str, text: str) -> None:
    """Label a run with a text, or remove its label if the text is empty."""
    from gptmini.runs import find_run, read_tag, write_tag

    folder = find_run(run)
    write_tag(folder, text)
    print_resolved_run(Path(run).expanduser(), folder)
    label = read_tag(folder)
    print_lines(f"{folder}  {label}" if label else f"{folder} has no tag")


def delete(paths: list[Path], *, is_sure: bool) -> None:
    """Delete runs. Ask first, unless is_sure.

    Raises UserError, and deletes nothing, if a path is not a run, or if a process trains one of the runs.
    """
    from gptmini.report.overview import overview_of
    from gptmini.report.tables import aligned
    from gptmini.runs import RUNS, delete_run, locked

    restore_gc_and_sigint()  # Ctrl-C releases the locks
    folders = list(dict.fromkeys(run_to_delete(path) for path in paths))
    is_terminal = sys.stdin.isatty()
    if not is_sure and not is_terminal:
        raise UserError("--delete asks on a terminal; without a terminal, add --yes")

    rows = [cells(overview_of(folder)) for folder in folders]  # a locked run would be 'running'
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(locked(folder))

        # The files of a locked run do not change.
        sizes = [size_of(folder) for folder in folders]
        shown = [
            [row["run"], row["state"], row["step"], size, row["tag"]]
            for row, size in zip(rows, sizes, strict=True)
        ]
        print_lines(*aligned(shown))
        print_lines(*(f"note: {note}" for note in notes_about(folders)))

        what = "this run" if len(folders) == 1 else f"these {len(folders)} runs"
        if not is_sure and not confirmed(f"delete {what}? [y/N] "):
            print_lines("nothing was deleted")
            return

        latest = []
        for folder in folders:
            latest.append(delete_run(folder, str(RUNS)))
            print_lines(f"deleted {folder}")
        for run in dict.fromkeys(latest):
            if run is not None and run not in folders:
                print_lines(f"latest is now {run}")


def notes_about(folders: "list[Path]") -> list[str]:
    """Return a note about each run and each sweep that refers to the runs in `folders`."""
    from gptmini.runs import RUNS, every_run, relative_to_cwd, root_of, runs_started_from

    notes = []
    for folder in folders:
        roots = {RUNS.absolute(), (root_of(folder, str(RUNS)) or RUNS).absolute()}
        runs = [relative_to_cwd(run) for root in sorted(roots) for run in every_run(root)]
        others = [run for run in runs if run not in folders]
        for run in runs_started_from(folder, others):
            notes.append(f"{run} started from the weights of {folder}")
        if (folder.parent / "journal.log").is_file():  # the journal of gptmini sweep
            notes.append(f"the sweep {folder.parent} still lists {folder} afterwards")
    return notes


def run_to_delete(path: Path) -> Path:
    """Return the folder of the run that a path stands for. A folder of runs stands for its only run.

    Raises UserError if the path is anything else, such as a folder of several runs or a checkpoint.
    """
    from gptmini.runs import can_delete, find_runs

    folder, *others = find_runs(path)
    if others:
        raise UserError(
            f"{path} contains {len(others) + 1} runs; give the runs to delete, such as {folder}"
        )
    if path.is_file() or not can_delete(folder):
        raise UserError(f"{path} must be the folder of a run to delete it")
    return folder


def size_of(folder: Path) -> str:
    """Return the size of all files in a folder, in megabytes."""
    n_bytes = sum(path.lstat().st_size for path in folder.rglob("*"))
    return f"{n_bytes / 1e6:.1f} MB"


def confirmed(question: str) -> bool:
    """Ask the user a question on the terminal. Return whether the answer is yes."""
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
