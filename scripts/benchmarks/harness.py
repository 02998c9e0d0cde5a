"""What all benchmarks share: the command line, turns, rows of figures, their table and JSON file, and timed commands.

A benchmark is a module with a docstring and measure(table, arguments), or PARTS, which names several such functions.
It may have options(parser), where options of its own are added, and prepare(arguments), which is called once before
anything is measured. Every row says what was measured, the figure, its spread, the goal, and by which method.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from gptmini.commands.mistakes import Parser
from gptmini.files import replacing
from gptmini.runs import read_lines
from gptmini.user_error import UserError

ROOT = Path(__file__).resolve().parent.parent.parent  # of the repository
RESULTS = ROOT / "docs" / "results"  # the JSON files behind the tables of docs/results.md
# The part of figures that were measured by hand, which no benchmark measures again.
ONCE = "once"
GPTMINI = (sys.executable, "-m", "gptmini")
# What a run leaves out whose speed is compared with that of a program that has neither.
UNWATCHED = ("callbacks.samples=null", "callbacks.pictures=null")

# Runs a command, and prints its seconds and the most kilobytes that it held. The system counts for a command what the
# process that starts it holds at that moment, so a process that imports nearly nothing has to start it.
LAUNCHER = """
import os, subprocess, sys, time
began = time.perf_counter()
process = subprocess.Popen(sys.argv[1:])
_, status, usage = os.wait4(process.pid, 0)
print(f"\\n{time.perf_counter() - began} {usage.ru_maxrss}")
sys.exit(min(1, abs(os.waitstatus_to_exitcode(status))))
"""


# The command line


class NotGivenError(Exception):
    """A part cannot be measured because an option was not given."""


def run(name: str, benchmark: ModuleType, words: Sequence[str]) -> None:
    """Read the command line of a benchmark, set the number of threads, and measure part after part."""
    arguments = read_arguments(name, benchmark, words)
    if arguments.threads is not None:
        use_threads(arguments.threads)
    table = Table(name, arguments.out, arguments.only)
    if hasattr(benchmark, "prepare"):
        benchmark.prepare(arguments)
    if hasattr(benchmark, "measure"):
        benchmark.measure(table, arguments)
    else:
        measure_parts(table, arguments.only, benchmark.PARTS, arguments)


def read_arguments(name: str, benchmark: ModuleType, words: Sequence[str]) -> argparse.Namespace:
    """Read the command line of a benchmark; a mistake ends the program with one line."""
    parser = Parser(prog=f"benchmark.py {name}", description=benchmark.__doc__.splitlines()[0])
    add = parser.add_argument
    parts = getattr(benchmark, "PARTS", ())
    if parts:
        told = f"parts to measure, of {', '.join(parts)} (default: all)"
        add("--only", nargs="+", choices=[*parts], default=[*parts], metavar="PART", help=told)
    else:
        parser.set_defaults(only=[""])
    add("--out", type=Path, help=f"the file of the table, as JSON (default: {name}.json)")
    threads = getattr(benchmark, "THREADS", 2)
    add("--threads", type=positive, default=threads, help="CPU threads (default: %(default)s)")
    turns = getattr(benchmark, "TURNS", 3)
    add("--turns", type=positive, default=turns, help="turns that count (default: %(default)s)")
    if hasattr(benchmark, "options"):
        benchmark.options(parser)

    arguments = parser.parse_intermixed_args(words)
    if arguments.out is None:
        suffix = "-dry-run" if getattr(arguments, "dry_run", False) else ""
        arguments.out = Path(f"{name}{suffix}.json")
    if arguments.out.is_dir() or not arguments.out.parent.is_dir():
        parser.error(f"--out must be a file in a folder that is there, got {arguments.out}")
    return arguments


def positive(text: str) -> int:
    """A whole number of at least 1, as a type of argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Add overrides of what is trained."""
    told = "overrides of every run, as for gptmini train: data.path=input.txt"
    parser.add_argument("overrides", nargs="*", help=told)


def given(arguments: object, option: str) -> Any:
    """The value of an option without which a part is left out."""
    value = getattr(arguments, option)
    if value is None:
        raise NotGivenError(f"--{option.replace('_', '-')}")
    return value


def measure_parts(
    table: "Table", names: Sequence[str], parts: Mapping[str, Callable], arguments: object
) -> None:
    """Call the functions of some parts; a part whose peer is not there is left out, and named."""
    for name in names:
        table.part = name
        try:
            parts[name](table, arguments)
        except NotGivenError as option:
            print(f"{name}: left out, because it needs {option}")


def use_threads(number: int) -> None:
    """Compute on a number of threads, here and in every process that is started."""
    os.environ["OMP_NUM_THREADS"] = str(number)
    if "torch" in sys.modules:  # which has read the variable already
        sys.modules["torch"].set_num_threads(number)


# Turns


def in_turns(turns: int, kinds: Mapping[str, Callable[[], Any]]) -> dict[str, list]:
    """Call each function once a turn, A B A B, and return what each gave, turn by turn."""
    found: dict[str, list] = {name: [] for name in kinds}
    for turn in range(turns):
        for name, function in kinds.items():
            found[name].append(function())
            print(f"  turn {turn + 1}, {name}: {shown_all(found[name][-1])}", file=sys.stderr)
    return found


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Numbers divided by others, turn by turn."""
    return [one / other for one, other in zip(above, below, strict=True)]


def differences(these: Sequence[float], those: Sequence[float]) -> list[float]:
    """Numbers less others, turn by turn."""
    return [one - other for one, other in zip(these, those, strict=True)]


# Tables


class Table:
    """Rows of figures, each printed, and saved with all others, as soon as it is measured."""

    def __init__(self, name: str, path: Path, parts: Sequence[str]) -> None:
        """Begin a table with the rows of an earlier call, but for the parts that are measured now.

        Args:
            name: the benchmark.
            path: the JSON file of the rows, which need not exist.
            parts: those that are measured now.

        Raises UserError: the file holds something else than a table.
        """
        self.name = name
        self.path = path
        self.part = ""  # of the rows that are added next
        self.rows: list[dict] = []
        if path.is_file():
            earlier = read_results(path)["rows"]
            self.rows = [row for row in earlier if row["part"] not in parts]

    def add(
        self,
        what: str,
        figure: float | str | None,
        *,
        spread: Sequence[float] = (),
        goal: str = "",
        method: str = "",
        status: str = "measured",
        **details: float | str,
    ) -> None:
        """Add a row.

        Args:
            what: is measured, with its unit.
            figure: the measured number; None if there is none.
            spread: numbers whose smallest and largest are kept.
            goal: as met() reads it.
            method: how the figure was found, in a few words.
            status: measured, passed, failed, skipped, or why there is no figure.
            details: further figures by name, which the page leaves out.
        """
        row = {
            "part": self.part,
            "what": what,
            "figure": _rounded(figure),
            "spread": [_rounded(min(spread)), _rounded(max(spread))] if len(spread) > 1 else None,
            "goal": goal,
            "method": method,
            "status": status,
        }
        row |= {name: _rounded(value) for name, value in details.items()}
        self.rows.append(row)

        words = [f"{name} {shown(row[name])}" for name in details]
        state = "" if status == "measured" else status
        line = " | ".join(part for part in (*cells(row), state, ", ".join(words)) if part)
        print(f"{self.part or self.name:13} {line}", flush=True)
        with replacing(self.path) as file:
            file.write(json.dumps(self.results(), indent=1).encode())

    def add_median(
        self, what: str, figures: Sequence[float], *, goal: str = "", method: str = ""
    ) -> None:
        """Add a row of the median of figures, with their range."""
        if not method:
            method = f"{len(figures)} turns" if len(figures) > 1 else "1 turn"
        self.add(what, statistics.median(figures), spread=figures, goal=goal, method=method)

    def results(self) -> dict:
        """Everything that is saved: the benchmark, the machine, and the rows, those of ONCE last."""
        rows = sorted(self.rows, key=lambda row: row["part"] == ONCE)
        return {"benchmark": self.name, "machine": machine(), "rows": rows}


def read_results(path: Path) -> dict:
    """What a benchmark has saved; UserError for a file that holds something else."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        if all("part" in row for row in results["rows"]):
            return results
    except (ValueError, TypeError, KeyError):
        pass
    raise UserError(f"{path} must be a table of benchmark.py, or a new file")


def cells(row: dict) -> list[str]:
    """A row's cells: what, figure, spread, goal with the word missed where the figure misses it, and method."""
    spread = " to ".join(map(shown, row["spread"])) if row["spread"] else ""
    goal = row["goal"]
    if goal and isinstance(row["figure"], int | float) and not met(row["figure"], goal):
        goal += ": missed"
    figure = "" if row["figure"] is None else shown(row["figure"])
    if not figure and not spread:
        figure = "not measured"
    return [row["what"], figure, spread, goal, row["method"]]


def met(figure: float, goal: str) -> bool:
    """Whether a figure meets a goal: "at least X", "at most X", "below X", "X to Y", or "X"."""
    *words, number = goal.replace(",", "").split()
    bound = float(number)
    if words[:2] == ["at", "least"]:
        return figure >= bound
    if words[:2] == ["at", "most"]:
        return figure <= bound
    if words == ["below"]:
        return figure < bound
    if len(words) == 2 and words[1] == "to":
        return float(words[0]) <= figure <= bound
    return figure == bound


def shown(figure: float | str) -> str:
    """A figure as the table shows it."""
    if isinstance(figure, str):
        return figure
    return f"{figure:,}" if abs(figure) >= 1000 else str(figure)


def shown_all(found: object) -> str:
    """What a turn gave, for the line that tells how far a benchmark is."""
    figures = found if isinstance(found, tuple | list) else [found]
    return ", ".join(
        shown(_rounded(figure)) for figure in figures if isinstance(figure, int | float)
    )


def _rounded(figure: Any) -> Any:
    """A float with four digits that count, or whole if it is large; anything else as it is."""
    if not isinstance(figure, float):
        return figure
    return round(figure) if abs(figure) >= 1000 else float(f"{figure:.4g}")


def machine() -> str:
    """The machine and its versions, in a line."""
    from importlib.metadata import version

    parts = [f"{os.cpu_count()} cores of {platform.machine()}"]
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join([*parts, f"Python {platform.python_version()}", f"PyTorch {version('torch')}"])


# Commands


class Ended(NamedTuple):
    """A command that has ended."""

    seconds: float
    megabytes: float  # the most memory that it held at once


class Run(NamedTuple):
    """A run of gptmini train that has ended."""

    began: float  # seconds since 1970 at which the command was started
    seconds: float  # of the whole command
    megabytes: float  # the most memory that it held at once
    lines: list[dict]  # what it logged

    def of(self, tag: str) -> list[float]:
        """The values of a curve."""
        return [line[tag] for line in self.lines if tag in line]

    @property
    def loss(self) -> float:
        """The last validation loss, in nats per token."""
        return self.of("val/loss")[-1]


def train(*overrides: str) -> Run:
    """Run gptmini train with overrides, in a process and a folder of its own; errors are those of output_of."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        began = time.time()
        ended = timed(*GPTMINI, "train", *overrides, f"folder={run}", cwd=Path.cwd())
        return Run(began, ended.seconds, ended.megabytes, read_lines(run))


def timed(*command: str, cwd: Path = ROOT) -> Ended:
    """Run a command, and measure it with its start-up; errors are those of output_of."""
    launcher = [sys.executable, "-S", "-c", LAUNCHER]
    output = output_of([*launcher, *command], cwd=cwd)
    seconds, kilobytes = output.splitlines()[-1].split()
    return Ended(float(seconds), int(kilobytes) / 1024)


def output_of(command: Sequence[str], *, cwd: Path = ROOT) -> str:
    """What a command prints that runs in the folder cwd.

    Raises UserError: the command failed; the message ends with the last line that it wrote.
    """
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = (result.stderr.strip() or result.stdout.strip()).splitlines() or ["nothing said"]
        raise UserError(f"a command failed: {' '.join(command[-8:])}: {lines[-1]}")
    return result.stdout
