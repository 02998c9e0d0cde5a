"""Run a measurement: python scripts/benchmark.py NAME [options]; NAME is a file in scripts/benchmarks."""

import runpy
import sys
from pathlib import Path

from gptmini.checks import UserError
from gptmini.commands.errors import one_line_errors

FOLDER = Path(__file__).resolve().parent / "benchmarks"


def main() -> None:
    """Hand the remaining arguments to the named benchmark."""
    names = sorted(path.stem for path in FOLDER.glob("*.py"))
    usage = f"python scripts/benchmark.py NAME [options]; NAME is one of {', '.join(names)}"
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(f"usage: {usage}")
        return
    if len(sys.argv) < 2:
        raise UserError(f"a NAME is needed: {usage}")
    if sys.argv[1] not in names:
        raise UserError(f"there is no benchmark {sys.argv[1]}: {usage}")

    name = sys.argv.pop(1)
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


if __name__ == "__main__":
    with one_line_errors():
        main()
