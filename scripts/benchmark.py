"""Run a measurement: python scripts/benchmark.py NAME [options]; NAME is a file in scripts/benchmarks."""

import runpy
import sys
from pathlib import Path

from gptmini.commands.errors import MISUSE, one_line_errors

FOLDER = Path(__file__).resolve().parent / "benchmarks"


def main() -> None:
    """Hand the remaining arguments to the named benchmark."""
    names = sorted(path.stem for path in FOLDER.glob("*.py"))
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        asked_for_help = sys.argv[1:] in (["-h"], ["--help"])
        print(
            f"usage: python scripts/benchmark.py NAME [options]; NAME is one of {', '.join(names)}",
            file=sys.stdout if asked_for_help else sys.stderr,
        )
        sys.exit(0 if asked_for_help else MISUSE)
    name = sys.argv.pop(1)
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


if __name__ == "__main__":
    with one_line_errors():
        main()
