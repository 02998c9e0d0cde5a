"""Run a measurement: python scripts/benchmark.py NAME [options]; NAME is a file or a folder in scripts/benchmarks."""

import runpy
import sys
from pathlib import Path
from types import ModuleType

from gptmini.commands.errors import one_line_errors
from gptmini.user_error import UserError

FOLDER = Path(__file__).resolve().parent / "benchmarks"


def main() -> None:
    """Hand the remaining arguments to the named benchmark."""
    files = {path.stem: path for path in FOLDER.glob("*.py")}
    folders = {path.parent.name: path.parent for path in FOLDER.glob("*/__main__.py")}
    names = sorted([*files, *folders])
    usage = f"python scripts/benchmark.py NAME [options]; NAME is one of {', '.join(names)}"

    if sys.argv[1:] in (["-h"], ["--help"]):
        print(f"usage: {usage}")
        return
    if len(sys.argv) < 2:
        raise UserError(f"a NAME is needed: {usage}")
    if sys.argv[1] not in names:
        raise UserError(f"there is no benchmark {sys.argv[1]}: {usage}")

    name = sys.argv.pop(1)
    if name in files:
        runpy.run_path(str(files[name]), run_name="__main__")
    else:
        run_folder(folders[name])


def run_folder(folder: Path) -> None:
    """Run the __main__.py of a folder, whose files import each other relatively, as in from .table import Table.

    The folder becomes a package under a name that no installed package has. On sys.path its files could hide installed
    packages of the same names, or be hidden by them.
    """
    package = ModuleType(f"_benchmark_{folder.name}")
    package.__path__ = [str(folder)]
    sys.modules[package.__name__] = package
    runpy.run_module(f"{package.__name__}.__main__", run_name="__main__")


if __name__ == "__main__":
    with one_line_errors():
        main()
