"""Shared code of the benchmarks: command line, turns, tables of figures with their JSON files, and timed commands.

A benchmark is a module with a docstring and either measure(table, arguments), or PARTS, which maps names to such
functions. Optional functions are options(parser), which adds options, and prepare(arguments), which is called once
before the measurements. Each row has a name, a figure, its spread, a goal, and a method.
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

from gptmini.commands.options import Parser
from gptmini.runs import read_lines
from gptmini.system.errors import UserError
from gptmini.system.files import replacing

ROOT = Path(__file__).resolve().parent.parent.parent  # root of the repository
RESULTS = ROOT / "docs" / "results"  # JSON files of the tables in docs/results.md
GPTMINI = (sys.executable, "-m", "gptmini")
# Overrides for a fair comparison of speed with programs that draw no samples or pictures.
UNWATCHED = ("callbacks.samples=null", "callbacks.pictures=null")

# Runs a command and prints its seconds and its peak memory in kilobytes. The system also counts the memory of the
# parent process at the start of the command, so the parent must be a process that imports almost nothing.
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
    """A part cannot be measured because an option is missing."""


def run(name: str, benchmark: ModuleType, words: Sequence[str]) -> None:
    """Parse the command line of a benchmark, set the number of threads, and measure its parts."""
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
    """Parse the command line of a benchmark; a mistake ends the program with a one-line error."""
    parser = Parser(prog=f"benchmark.py {name}", description=benchmark.__doc__.splitlines()[0])
    add = parser.add_argument
    parts = getattr(benchmark, "PARTS", ())
    if parts:
        note = f"parts to measure: {', '.join(parts)} (default: all)"
        add("--only", nargs="+", choices=[*parts], default=[*parts], metavar="PART", help=note)
    else:
        parser.set_defaults(only=[""])
    add("--out", type=Path, help=f"JSON file for the table (default: {name}.json)")
    threads = getattr(benchmark, "THREADS", 2)
    add("--threads", type=positive, default=threads, help="CPU threads (default: %(default)s)")
    turns = getattr(benchmark, "TURNS", 3)
    add("--turns", type=positive, default=turns, help="measured turns (default: %(default)s)")
    if hasattr(benchmark, "options"):
        benchmark.options(parser)

    arguments = parser.parse_intermixed_args(words)
    if arguments.out is None:
        suffix = "-dry-run" if getattr(arguments, "dry_run", False) else ""
        arguments.out = Path(f"{name}{suffix}.json")
    if arguments.out.is_dir() or not arguments.out.parent.is_dir():
        parser.error(f"--out must be a file in an existing folder, got {arguments.out}")
    return arguments


def positive(text: str) -> int:
    """Parse an integer of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Add the positional argument for overrides."""
    note = "overrides for every run, such as data.path=input.txt"
    parser.add_argument("overrides", nargs="*", help=note)


def given(arguments: object, option: str) -> Any:
    """Return the value of an option; if it is missing, the part is skipped."""
    value = getattr(arguments, option)
    if value is None:
        raise NotGivenError(f"--{option.replace('_', '-')}")
    return value


def measure_parts(
    table: "Table", names: Sequence[str], parts: Mapping[str, Callable], arguments: object
) -> None:
    """Call the functions of some parts; skip a part with a message if one of its options is missing."""
    for name in names:
        table.part = name
        try:
            parts[name](table, arguments)
        except NotGivenError as option:
            print(f"{name}: skipped; it requires {option}")


def use_threads(number: int) -> None:
    """Set the number of CPU threads of this process and of its child processes."""
    os.environ["OMP_NUM_THREADS"] = str(number)
    if "torch" in sys.modules:  # torch reads the variable only once, at import
        sys.modules["torch"].set_num_threads(number)


# Turns


def in_turns(turns: int, kinds: Mapping[str, Callable[[], Any]]) -> dict[str, list]:
    """Call each function once per turn (A B A B ...), and return the results of each function by turn."""
    results: dict[str, list] = {name: [] for name in kinds}
    for turn in range(turns):
        for name, function in kinds.items():
            results[name].append(function())
            print(f"  turn {turn + 1}, {name}: {shown_all(results[name][-1])}", file=sys.stderr)
    return results


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Return above divided by below, for each turn."""
    return [one / other for one, other in zip(above, below, strict=True)]


def differences(these: Sequence[float], those: Sequence[float]) -> list[float]:
    """Return these minus those, for each turn."""
    return [one - other for one, other in zip(these, those, strict=True)]


# Tables


class Table:
    """Rows of figures. Each new row is printed, and the file is saved, as soon as the row is measured."""

    def __init__(self, name: str, path: Path, parts: Sequence[str]) -> None:
        """Start with the rows of an earlier call, except those of the parts to measure now.

        Args:
            name: name of the benchmark.
            path: JSON file of the rows; it need not exist.
            parts: parts to measure now.

        Raises UserError if the file is not a table.
        """
        self.name = name
        self.path = path
        self.part = ""  # part of the next rows
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
            what: name of the measurement, with its unit.
            figure: the measured number, or None.
            spread: numbers; the row keeps their minimum and maximum.
            goal: see met().
            method: short description of the method.
            status: measured, passed, failed, skipped, or the reason for a missing figure.
            details: other figures by name; they are not on the page.
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
        """Add a row with the median of figures and their range."""
        if not method:
            method = f"{len(figures)} turns" if len(figures) > 1 else "1 turn"
        self.add(what, statistics.median(figures), spread=figures, goal=goal, method=method)

    def results(self) -> dict:
        """Return the contents of the JSON file."""
        return {"benchmark": self.name, "machine": machine(), "rows": self.rows}


def read_results(path: Path) -> dict:
    """Read the results that a benchmark saved; raise UserError if the file has other contents."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        if all("part" in row for row in results["rows"]):
            return results
    except (ValueError, TypeError, KeyError):
        pass
    raise UserError(f"{path} must be a table of benchmark.py or a new file")


def cells(row: dict) -> list[str]:
    """Return the cells of a row: what, figure, spread, goal (plus "missed" if the figure misses it), and method."""
    spread = " to ".join(map(shown, row["spread"])) if row["spread"] else ""
    goal = row["goal"]
    if goal and isinstance(row["figure"], int | float) and not met(row["figure"], goal):
        goal += ": missed"
    figure = "" if row["figure"] is None else shown(row["figure"])
    if not figure and not spread:
        figure = "not measured"
    return [row["what"], figure, spread, goal, row["method"]]


def met(figure: float, goal: str) -> bool:
    """Return whether a figure meets a goal: "at least X", "at most X", "below X", "X to Y", or "X"."""
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
    """Format a figure for the table."""
    if isinstance(figure, str):
        return figure
    return f"{figure:,}" if abs(figure) >= 1000 else str(figure)


def shown_all(result: object) -> str:
    """Format the result of a turn, which has one or more figures, for the progress line."""
    figures = result if isinstance(result, tuple | list) else [result]
    return ", ".join(
        shown(_rounded(figure)) for figure in figures if isinstance(figure, int | float)
    )


def _rounded(figure: Any) -> Any:
    """Round a float to four significant digits, or to an integer from 1000 on; return other values unchanged."""
    if not isinstance(figure, float):
        return figure
    return round(figure) if abs(figure) >= 1000 else float(f"{figure:.4g}")


def machine() -> str:
    """Return one line with the machine and the versions."""
    from importlib.metadata import version

    parts = [f"{os.cpu_count()} cores of {platform.machine()}"]
    torch = sys.modules.get("torch")
    if torch is not None:
        cpu = torch.cpu.get_capabilities()
        native = [name for name in ("avx512_bf16", "amx_bf16") if cpu.get(name)]
        parts = [f"{parts[0]} ({cpu['cpu_name']}, {' and '.join(native) or 'no native bf16'})"]
    if torch is not None and torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join([*parts, f"Python {platform.python_version()}", f"PyTorch {version('torch')}"])


# Commands


class Ended(NamedTuple):
    """Time and memory of a finished command."""

    seconds: float
    megabytes: float  # peak memory


class Run(NamedTuple):
    """A finished run of gptmini train."""

    began: float  # start time of the command, seconds since 1970
    seconds: float  # duration of the entire command
    megabytes: float  # peak memory
    lines: list[dict]  # lines of metrics.jsonl

    def of(self, tag: str) -> list[float]:
        """Return the values of a curve."""
        return [line[tag] for line in self.lines if tag in line]

    @property
    def loss(self) -> float:
        """Last validation loss, in nats per token."""
        return self.of("val/loss")[-1]


def train(*overrides: str) -> Run:
    """Run gptmini train with overrides in a new process and a temporary run folder; raises the errors of output_of."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        began = time.time()
        ended = timed(*GPTMINI, "train", *overrides, f"folder={run}", cwd=Path.cwd())
        return Run(began, ended.seconds, ended.megabytes, read_lines(run))


def timed(*command: str, cwd: Path = ROOT) -> Ended:
    """Run a command and measure it, including its start-up; raises the errors of output_of."""
    launcher = [sys.executable, "-S", "-c", LAUNCHER]
    output = output_of([*launcher, *command], cwd=cwd)
    seconds, kilobytes = output.splitlines()[-1].split()
    return Ended(float(seconds), int(kilobytes) / 1024)


def output_of(command: Sequence[str], *, cwd: Path = ROOT) -> str:
    """Run a command in the folder cwd and return its output.

    Raises UserError if the command fails; the message ends with the last line of its output.
    """
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = (result.stderr.strip() or result.stdout.strip()).splitlines() or ["no output"]
        raise UserError(f"a command failed: {' '.join(command[-8:])}: {lines[-1]}")
    return result.stdout
