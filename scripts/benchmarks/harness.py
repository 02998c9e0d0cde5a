"""What all benchmarks share: turns, rows of figures, their table and JSON file, commands that are timed, and fits.

A benchmark is a module with a docstring, a function measure(table, arguments) and, if it has options of its own,
options(parser). Every row says what was measured, the figure, its spread, the goal, and by which method.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from gptmini.commands.errors import Parser
from gptmini.files import replacing
from gptmini.user_error import UserError

# torch and Lightning take seconds to import, and a mistake in the command line is told before.
if TYPE_CHECKING:
    import lightning as L
    from omegaconf import DictConfig

    from gptmini.commands.parts import Settings
    from gptmini.data import TokenStore
    from gptmini.training import GPTModule

ROOT = Path(__file__).resolve().parent.parent.parent  # of the repository
RESULTS = ROOT / "docs" / "results"  # the JSON files behind the tables of docs/results.md
# The part of figures that were measured by hand, which no benchmark measures again.
ONCE = "once"
GPTMINI = (sys.executable, "-m", "gptmini")

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


def run(name: str, benchmark: ModuleType, words: Sequence[str]) -> None:
    """Read the command line of a benchmark, pin its threads, and measure."""
    summary = benchmark.__doc__.splitlines()[0]
    parser = Parser(prog=f"benchmark.py {name}", description=summary)
    parts = getattr(benchmark, "PARTS", ())
    if parts:
        usual = [*getattr(benchmark, "USUAL_PARTS", parts)]
        told = f"parts to measure, of {', '.join(parts)} (default: {', '.join(usual)})"
        parser.add_argument(
            *("--only", "--of"),
            nargs="+",
            choices=[*parts],
            default=usual,
            metavar="PART",
            help=told,
        )
    add = parser.add_argument
    add("--out", type=Path, help=f"the file of the table, as JSON (default: {name}.json)")
    threads = getattr(benchmark, "THREADS", 2)
    add("--threads", type=int, default=threads, help="CPU threads (default: %(default)s)")
    turns = getattr(benchmark, "TURNS", 3)
    add("--turns", type=int, default=turns, help="turns that count (default: %(default)s)")
    if hasattr(benchmark, "options"):
        benchmark.options(parser)

    arguments = parser.parse_intermixed_args(words)
    if arguments.out is None:
        suffix = "-dry-run" if getattr(arguments, "dry_run", False) else ""
        arguments.out = Path(f"{name}{suffix}.json")
    if arguments.out.is_dir() or not arguments.out.parent.is_dir():
        parser.error(f"--out must be a file in a folder that is there, got {arguments.out}")
    for option, value in vars(arguments).items():
        numbers = value if isinstance(value, list) else [value]
        if option != "seeds" and any(type(number) is int and number < 1 for number in numbers):
            parser.error(f"--{option.replace('_', '-')} must be at least 1")

    if arguments.threads is not None:
        # Before torch is imported, so that it holds here and in every process that is started.
        os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    table = Table(name, arguments.out, arguments.only if parts else [""])
    benchmark.measure(table, arguments)


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


# Tables


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
    output: str


def timed(*command: str, cwd: Path = ROOT, **variables: str) -> Ended:
    """Run a command, and measure it with its start-up; errors are those of output_of."""
    launcher = [sys.executable, "-S", "-c", LAUNCHER]
    output, _, measured = (
        output_of([*launcher, *command], cwd=cwd, **variables).rstrip().rpartition("\n")
    )
    seconds, kilobytes = measured.split()
    return Ended(float(seconds), int(kilobytes) / 1024, output)


def output_of(
    command: Sequence[str], *, timeout: float | None = None, cwd: Path = ROOT, **variables: str
) -> str:
    """What a command prints.

    Args:
        command: the program and its arguments.
        timeout: seconds that the command may take; None for any time.
        cwd: the folder that the command runs in.
        variables: of the environment, besides those of this process.

    Raises UserError: the command failed; the message ends with the last line that it wrote. Raises
    subprocess.TimeoutExpired: it took too long, and was ended.
    """
    result = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    if result.returncode:
        lines = (result.stderr.strip() or result.stdout.strip()).splitlines() or ["nothing said"]
        raise UserError(f"a command failed: {' '.join(command[-8:])}: {lines[-1]}")
    return result.stdout


def final_losses(run: Path) -> tuple[float, float]:
    """The last validation loss of a run's folder, in nats per token and in bits per byte."""
    from gptmini.runs import read_lines

    last = read_lines(run, having="val/loss")[-1]
    return last["val/loss"], last["val/bits_per_byte"]


# Fits in this process


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A configuration, and what a run takes from it: the settings and the tokens."""

    config: "DictConfig"
    settings: "Settings"
    store: "TokenStore"


def subject_of(
    overrides: Sequence[str], adapt: "Callable[[DictConfig], None] | None" = None
) -> Subject:
    """Compose and check a configuration as gptmini train does, prepare its text, and set up this process.

    Args:
        overrides: KEY=VALUE or GROUP=NAME each, as a user types them.
        adapt: changes the composed configuration.
    """
    from gptmini.commands.compose import compose
    from gptmini.commands.parts import build_settings
    from gptmini.commands.resumed import going_on
    from gptmini.commands.tokens import open_tokens
    from gptmini.commands.train import prepare_process

    config, typed = compose("train", ["trainer.devices=1", *overrides])
    if adapt is not None:
        adapt(config)
    config, typed = going_on(config, typed)
    settings = build_settings(config)
    prepare_process(settings)
    store, _ = open_tokens(config, typed, settings)
    return Subject(config=config, settings=settings, store=store)


def fit(
    subject: Subject,
    folder: Path,
    *,
    callbacks: Sequence["L.Callback"] = (),
    loggers: Sequence = (),
    parts: "tuple | None" = None,
) -> "GPTModule":
    """Train a subject with these callbacks alone, and return its module.

    Args:
        subject: what is trained.
        folder: the run's folder.
        callbacks: what Lightning calls; those of the configuration are left out.
        loggers: what every scalar is told.
        parts: the module and the batches; assembled here if None.
    """
    from gptmini.commands.train import assemble
    from gptmini.training import build_trainer

    settings = subject.settings
    module, data = parts or assemble(settings, subject.store, None)
    trainer = build_trainer(
        module.settings,
        folder,
        device=settings.hardware.device,
        precision=settings.hardware.precision,
        callbacks=callbacks,
        loggers=loggers,
    )
    trainer.fit(module, data)
    return module


def seconds_of(function: Callable[[], object]) -> float:
    """The seconds that a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
