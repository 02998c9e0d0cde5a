"""Write an HTML page about runs, or write the curves of a run as CSV: gptmini report RUN [options]."""

import argparse
from pathlib import Path

from gptmini.commands.mistakes import one_line_errors
from gptmini.commands.options import parse_options
from gptmini.console.numbers import with_prefix
from gptmini.console.printing import print_lines, print_note, print_resolved_run
from gptmini.report import ReportedRun, csv_of, give_names, page_of
from gptmini.runs import find_run, find_runs
from gptmini.system.errors import UserError
from gptmini.system.files import encodable, replacing
from gptmini.system.process import restore_gc_and_sigint

OPTIONS = """
run RUN?  run folder such as runs/latest; runs/NAME means the latest run in this folder
--compare RUN+  plot several runs in the same charts; runs/NAME means all runs in this folder
--csv  write the curves as CSV instead of a page, with one row per step and one column per tag
--out FILE  file to write (default: report.html or metrics.csv in the run's folder; with --compare, ./compare.html)
"""
DESCRIPTION = "Write the curves, samples, pictures and configuration of a run as an HTML page, or the curves as CSV."


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line: either one run, or several runs after --compare."""
    options = parse_options("report", DESCRIPTION, OPTIONS, arguments)
    if (options.run is None) == (options.compare is None):
        raise UserError("give one run, or several runs after --compare")
    if options.csv and options.compare is not None:
        raise UserError("--csv requires a single run; leave out --compare")
    out = options.out
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise UserError(f"--out must be a file in an existing folder, got {out}")
    return options


@one_line_errors()
def main(arguments: list[str]) -> None:
    """Write the page or the table, and print the name and the size of the file."""
    options = parse(arguments)
    restore_gc_and_sigint()
    if options.compare is None:
        runs = [ReportedRun(find_run(options.run))]
        out = runs[0].folder / ("metrics.csv" if options.csv else "report.html")
    else:
        runs = [run for path in options.compare for run in runs_of(path)]
        out = Path("compare.html")
    if options.out is not None:
        out = options.out

    give_names(runs)
    if options.csv:
        text = csv_of(runs[0].lines)
    else:
        text = page_of(runs, compare=options.compare is not None)
    with replacing(out) as file:
        file.write(encodable(text).encode("utf-8"))

    if options.compare is None:
        print_resolved_run(options.run, runs[0].folder)
        if not runs[0].curves:
            print_note(f"note: {without_curves(runs[0].folder)}")
    print_lines(f"{out}, {with_prefix(out.stat().st_size, 'B')}")


def runs_of(path: Path) -> list[ReportedRun]:
    """Return the runs of a path that was given after --compare.

    In a folder of runs, skip a run that is damaged or has nothing to show yet, and print a note about it.

    Raises UserError if the path has no run that can be shown.
    """
    runs = []
    mistakes = []
    for folder in find_runs(path):
        try:
            run = ReportedRun(folder)
            if not run.curves:
                raise UserError(without_curves(folder))
            runs.append(run)
        except UserError as error:
            mistakes.append(error)

    if not runs:
        raise mistakes[0]
    for mistake in mistakes:
        print_note(f"skipped: {mistake}")
    return runs


def without_curves(folder: Path) -> str:
    """Return the message about a run that has not logged a loss."""
    return f"{folder} has no curves; {folder / 'train.log'} may give the reason"
