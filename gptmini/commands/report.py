"""A run, or several beside each other, as one self-contained HTML page: gptmini report RUN [options]."""

import argparse
from pathlib import Path

from gptmini.checks import UserError
from gptmini.commands.errors import Parser, one_line_errors


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line; argparse refuses what does not fit."""
    parser = Parser(
        prog="gptmini report", description="Write a run's curves, samples, pictures and configuration as one HTML page."
    )
    parser.add_argument("run", nargs="?", help="run folder, as in runs/latest, or runs/NAME for its newest run")
    parser.add_argument("--compare", nargs="+", metavar="RUN", help="runs to lay over each other instead")
    parser.add_argument("--out", type=Path, help="file (default: report.html in the run, or compare.html here)")
    arguments = parser.parse_args(arguments)
    if (arguments.run is None) == (arguments.compare is None):
        parser.error("name a run, or several after --compare")
    return arguments


@one_line_errors()
def main(arguments: list[str] | None = None) -> None:
    """Read the runs, write the page, say where it is."""
    arguments = parse(arguments)

    from gptmini.files import replacing
    from gptmini.report.page import page_of
    from gptmini.report.reported_run import ReportedRun, give_names

    runs = [ReportedRun(path) for path in arguments.compare or [arguments.run]]
    give_names(runs)
    out = arguments.out or (Path("compare.html") if arguments.compare else runs[0].folder / "report.html")
    target = out.resolve()  # where a link leads
    if not target.parent.is_dir() or (target.exists() and not target.is_file()):
        raise UserError(f"--out must be a file in a folder that exists, got {out}")

    page = page_of(runs, compare=arguments.compare is not None)
    with replacing(target) as file:
        file.write(page.encode("utf-8"))
    print(f"{out}, {out.stat().st_size / 1e6:.1f} MB")
