"""What became of the jobs of a sweep: each job writes its result into a file, and the sweep ends with a table of them.

Files reach the program from whatever process or machine a launcher runs a job on, as long as both see the same folder.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gptmini.files import replacing
from gptmini.processors import users_environment
from gptmini.user_error import UserError

# Environment variable in which a sweep tells a job that has a process of its own what a command line does not say.
JOB_VARIABLE = "GPTMINI_JOB"
LONGEST_CELL = 40  # characters of a value in the table; a longer one is cut


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a training run hands back to the sweep that it is a job of."""

    loss: float | None  # lowest validation loss, in nats per token; None if none was saved
    bits_per_byte: float | None  # at the same validation
    step: int | None  # optimizer steps done before that validation
    folder: str  # the run's folder
    stopped_by: str | None  # a signal's name or the time limit; None if nothing stopped the run
    exit_code: int  # 128 + the number of a signal that stopped the run, else 0


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """What became of one job of a sweep."""

    number: int  # from 0
    overrides: list[str]  # KEY=VALUE each
    seconds: float | None = None  # from the start to the end of the job; None if that is not known
    outcome: Outcome | None = None  # None for a job without a run to show
    failed: bool = False

    @property
    def ending(self) -> str:
        """How the job ended, in a word or two."""
        if self.failed:
            return "failed"
        if self.outcome is None:
            return "stopped"
        if self.outcome.stopped_by is not None:
            return f"stopped by {self.outcome.stopped_by}"
        return "done"


def write_result(result: JobResult, folder: Path) -> None:
    """Write the result of a job into a folder of results; OSError if that cannot be written."""
    with replacing(folder / f"{result.number}.json") as file:
        file.write(json.dumps(asdict(result)).encode())


def read_results(folder: Path) -> list[JobResult]:
    """Read the results that the jobs of a sweep have written into a folder."""
    results = []
    for path in folder.glob("*.json"):
        fields = json.loads(path.read_bytes())
        if fields["outcome"] is not None:
            fields["outcome"] = Outcome(**fields["outcome"])
        results.append(JobResult(**fields))
    return results


@dataclass(frozen=True)
class Assignment:
    """What a sweep tells a job that has a process of its own."""

    label: str  # ends the name of the run's folder
    outcome: str  # file for the outcome of the run

    def hand_over(self) -> dict[str, str]:
        """The environment of the job's process."""
        return {**users_environment(), JOB_VARIABLE: json.dumps(asdict(self))}

    @staticmethod
    def take() -> "Assignment | None":
        """The assignment of this process; None outside of a sweep. The processes that this one starts have none."""
        text = os.environ.pop(JOB_VARIABLE, None)
        if text is None:
            return None
        try:
            return Assignment(**json.loads(text))
        except (ValueError, TypeError):
            raise UserError(
                f"{JOB_VARIABLE} must be what a sweep sets for its jobs, got {text!r}; unset it"
            ) from None

    def write(self, outcome: Outcome) -> None:
        """Hand the outcome of the run back to the sweep."""
        with replacing(Path(self.outcome)) as file:
            file.write(json.dumps(asdict(outcome)).encode())

    def read(self) -> Outcome | None:
        """The outcome that the job's process has handed back; None if the process has not."""
        path = Path(self.outcome)
        return Outcome(**json.loads(path.read_bytes())) if path.is_file() else None


def varied_values(overrides: Sequence[str], varied: Sequence[str]) -> dict[str, str]:
    """The values that a job has for the keys that its sweep varies, as texts by key."""
    values = {}
    for override in overrides:
        key, _, value = override.partition("=")
        key = key.lstrip("+~")
        if key in varied:
            values[key] = value.strip("'\"")
    return values


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """The last name of each dotted key, with as many names before it as tell the keys apart."""
    shortened = {}
    for key in keys:
        names = key.split(".")
        others = [other.split(".") for other in keys if other != key]
        n_kept = 1
        while n_kept < len(names) and any(names[-n_kept:] == other[-n_kept:] for other in others):
            n_kept += 1
        shortened[key] = ".".join(names[-n_kept:])
    return shortened


def label_of(overrides: Sequence[str], varied: Sequence[str]) -> str:
    """What tells a job of a sweep from the others, as in lr-0.01_n_layers-2; empty if nothing is varied."""
    # The name of a run is in the path of its folder already.
    keys = [key for key in varied if key != "name"]
    names = short_names(keys)
    values = varied_values(overrides, keys)
    parts = []
    for key in keys:
        if key in values:
            # Of a path the last part says most. Brackets of a list would become hyphens.
            value = values[key].rstrip("/").rpartition("/")[2].strip("[]{}")
            parts.append(f"{names[key]}-{value}")
    return "_".join(parts)


def table(
    results: Sequence[JobResult],
    varied: Sequence[str],
    jobs: Sequence[Sequence[str]] = (),
    *,
    interrupted: bool = False,
) -> list[str]:
    """The jobs of a sweep as the lines of a table, those with the lowest validation loss first.

    Args:
        results: of the jobs that have written one.
        varied: keys that the sweep varies; each is a column.
        jobs: overrides of every job, where they are known before the jobs begin. A job without a result is a row too.
        interrupted: whether the sweep ended before its last job.
    """
    by_number = {result.number: result for result in results}
    for number, overrides in enumerate(jobs):
        by_number.setdefault(number, JobResult(number=number, overrides=list(overrides)))
    reported = {result.number for result in results}
    silent = "not finished" if interrupted else "no result came back"

    names = short_names(varied)
    rows = [[*names.values(), "best loss", "step", "time", "ending", "folder"]]
    for result in sorted(by_number.values(), key=_rank):
        values = varied_values(result.overrides, varied)
        cells = [cut(values.get(key, "")) for key in varied]
        cells += _figures(result)
        cells.append(result.ending if result.number in reported else silent)
        cells.append("" if result.outcome is None else result.outcome.folder)
        rows.append(cells)

    # The ending is a column only where some job was not done.
    endings = {row[-2] for row in rows[1:]}
    if endings == {"done"}:
        rows = [[*row[:-2], row[-1]] for row in rows]
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The cells of a table as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _rank(result: JobResult) -> tuple[bool, float, int]:
    """The place of a job in the table, as a key to sort by: jobs without a loss come last."""
    loss = None if result.outcome is None else result.outcome.loss
    if loss is None:
        return (True, 0.0, result.number)
    return (False, loss, result.number)


def _figures(result: JobResult) -> list[str]:
    """Best loss, its step and the time of a job, as far as they are known."""
    from gptmini.training.monitoring.console import duration

    outcome = result.outcome
    loss = ""
    step = ""
    if outcome is not None and outcome.loss is not None:
        loss = f"{outcome.loss:.4f}"
        step = str(outcome.step)
    time = "" if result.seconds is None else duration(result.seconds)
    return [loss, step, time]


def cut(value: str) -> str:
    """A value that fits into a column."""
    if len(value) <= LONGEST_CELL:
        return value
    return f"{value[: LONGEST_CELL - 1]}…"
