"""What a report shows of a run folder: curves, texts, tables, pictures and configuration."""

from pathlib import Path
from typing import Any

from gptmini.report.tables import leaves
from gptmini.runs import (
    METRICS,
    STEP,
    curves_of,
    identity_of,
    picture_path,
    read_config,
    read_lines,
    read_status,
    tags_of,
)
from gptmini.system.errors import UserError
from gptmini.system.untrusted import check_plain_folder


class ReportedRun:
    """The contents of a run folder.

    Attributes:
        folder: the run's folder.
        name: the run's name in the report; give_names sets it.
        started: date and time of the first start, on the clock of the machine that trained the run.
        seconds: duration of the last start; None if it has not ended or was killed.
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
        day, _, clock = identity_of(folder).begun.partition("_")
        self.started = f"{day} {clock[:5].replace('-', ':')}"
        status = read_status(folder)
        self.seconds = None if status is None else status.seconds
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
