"""What a report shows of a run folder: curves, texts, tables, pictures and configuration."""

from datetime import datetime
from pathlib import Path
from typing import Any

from gptmini.console.numbers import duration
from gptmini.report.tables import leaves
from gptmini.runs import (
    METRICS,
    STEP,
    TIME,
    curves_of,
    picture_path,
    read_config,
    read_lines,
    tags_of,
)
from gptmini.system.errors import UserError
from gptmini.system.untrusted import check_plain_folder


class ReportedRun:
    """The contents of a run folder.

    Attributes:
        folder: the run's folder.
        name: the run's name in the report; give_names sets it.
        config: configuration values by dotted key.
        lines: the lines of metrics.jsonl.
        curves: (step, value) points of each scalar, by tag.
        pictures: (step, file) of each picture, by tag, oldest first.
    """

    def __init__(self, folder: Path) -> None:
        """Read a run folder that find_run returned.

        Raises UserError if metrics.jsonl is missing, as in runs of version 0.2, or if the configuration cannot be read.
        Also raises UserError if the folder contains links, because the page would embed pictures outside the run.
        """
        check_plain_folder(folder)
        self.name = ""
        self.folder = folder
        config, _ = read_config(folder)
        self.config = dict(leaves(config))
        if not (folder / METRICS).is_file():
            raise UserError(f"{folder} does not contain {METRICS}; a report requires this file")

        self.lines = read_lines(folder)
        self.curves = curves_of(self.lines)
        self.pictures: dict[str, list[tuple[int, Path]]] = {}
        for line in self.lines:
            for tag, value in tags_of(line).items():
                path = picture_path(folder, value)
                # The user may have deleted pictures to save disk space.
                if path is not None and path.is_file():
                    self.pictures.setdefault(tag, []).append((line[STEP], path))

    @property
    def started(self) -> str:
        """The local date and time of the first entry."""
        return f"{datetime.fromtimestamp(self.lines[0][TIME]):%Y-%m-%d %H:%M}" if self.lines else ""

    @property
    def lasted(self) -> str:
        """The time from the first entry to the last. If the run was resumed, the time between is included."""
        return duration(self.lines[-1][TIME] - self.lines[0][TIME]) if self.lines else ""

    def values(self, tag: str) -> list[tuple[int, Any]]:
        """Return every (step, value) pair of the samples or of a table, oldest first."""
        return [(line[STEP], line[tag]) for line in self.lines if tag in line]


def give_names(runs: list[ReportedRun]) -> None:
    """Give each run the shortest unique name: NAME, NAME/TIME or the path of runs/NAME/TIME.

    Raises UserError if a run is given twice.
    """
    folders = [run.folder.resolve() for run in runs]
    if len(set(folders)) < len(folders):
        raise UserError(f"runs to compare must differ, got {', '.join(map(str, folders))}")

    short = [folder.parent.name for folder in folders]
    # TensorBoard uses the same names.
    with_time = [f"{folder.parent.name}/{folder.name}" for folder in folders]
    paths = [str(folder) for folder in folders]
    choices = [short, with_time, paths]
    if len(runs) == 1:
        choices = [with_time]  # the page of a single run also shows the time of the run

    names = next(names for names in choices if len(set(names)) == len(runs))
    for run, name in zip(runs, names, strict=True):
        run.name = name
