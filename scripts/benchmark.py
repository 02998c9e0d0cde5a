"""Run a benchmark: python scripts/benchmark.py NAME [options].

The name all runs all benchmarks; page writes the tables of docs/results.md.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from gptmini.commands.mistakes import one_line_errors
from gptmini.system.errors import UserError
from gptmini.system.process import choose_spin_count

FOLDER = Path(__file__).resolve().parent / "benchmarks"
# Files in the folder that are not benchmarks.
SHARED = ("fits", "harness", "nanogpt", "synthetic")


def main() -> None:
    """Run the named benchmark with the remaining arguments."""
    files = [path for path in FOLDER.iterdir() if path.suffix == ".py" or path.is_dir()]
    names = sorted({path.stem for path in files} - {*SHARED, "__pycache__"})
    usage = f"python scripts/benchmark.py NAME [options]; NAME is one of {', '.join(names)}"

    if sys.argv[1:] in (["-h"], ["--help"]):
        print(f"usage: {usage}")
        return
    if len(sys.argv) < 2:
        raise UserError(f"NAME is missing; run: {usage}")
    name, *arguments = sys.argv[1:]
    if name not in names:
        raise UserError(f"unknown benchmark {name}; run: {usage}")

    # Waiting threads must behave as they do in a gptmini command.
    choose_spin_count()
    # Import the folder as a package with a unique name. On sys.path, its files could hide installed packages with the
    # same names, or be hidden by them.
    package = ModuleType("_benchmarks")
    package.__path__ = [str(FOLDER)]
    sys.modules.setdefault(package.__name__, package)
    harness = import_module("_benchmarks.harness")
    harness.run(name, import_module(f"_benchmarks.{name}"), arguments)


if __name__ == "__main__":
    with one_line_errors():
        main()
