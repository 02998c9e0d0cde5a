"""A run folder as a report reads it: its curves, texts, tables and pictures, and its configuration."""

from pathlib import Path
from typing import Any

from gptmini.report.tables import leaves
from gptmini.runs import curves_of, read_config, read_lines
from gptmini.runs.metrics import FILE, STEP, picture_path, tags_of
from gptmini.user_error import UserError


class ReportedRun:
    """A run folder, read whole.

    Attributes:
        folder: of the run.
        name: which the report calls the run; give_names sets it.
        config: every value of the configuration, by its dotted key.
        lines: what the run has logged, as in its metrics.jsonl.
        curves: every (step, value) point of a scalar, by tag.
        pictures: the step and the file of each picture, by tag, oldest first.
    """

    def __init__(self, folder: Path) -> None:
        """Read a run folder, as find_run returns it.

        Raises UserError: the run has no metrics.jsonl, as one of version 0.2, or no readable configuration.
        """
        self.name = ""
        self.folder = folder
        config, _ = read_config(folder)
        self.config = dict(leaves(config))
        if not (folder / FILE).is_file():
            raise UserError(f"{folder} has no {FILE}, which holds what a report shows")

        self.lines = read_lines(folder)
        self.curves = curves_of(self.lines)
        self.pictures: dict[str, list[tuple[int, Path]]] = {}
        for line in self.lines:
            for tag, value in tags_of(line).items():
                path = picture_path(folder, value)
                # Whoever needs the room may remove pictures.
                if path is not None and path.is_file():
                    self.pictures.setdefault(tag, []).append((line[STEP], path))

    def curve(self, tag: str) -> list[tuple[int, float]]:
        """Every (step, value) point of a scalar; an empty list where the run has no such tag."""
        return self.curves.get(tag, [])

    def values(self, tag: str) -> list[tuple[int, Any]]:
        """Every (step, value) of samples or a table, oldest first."""
        return [(line[STEP], line[tag]) for line in self.lines if tag in line]


def give_names(runs: list[ReportedRun]) -> None:
    """Name each run by the shortest text that tells it from the others: runs/NAME/TIME is NAME, NAME/TIME or the path.

    Raises UserError: a run is given twice.
    """
    folders = [run.folder.resolve() for run in runs]
    if len(set(folders)) < len(folders):
        raise UserError(f"runs to compare must differ, got {', '.join(map(str, folders))}")

    short = [folder.parent.name for folder in folders]
    with_time = [f"{folder.parent.name}/{folder.name}" for folder in folders]  # TensorBoard's names
    paths = [str(folder) for folder in folders]
    choices = [short, with_time, paths]
    if len(runs) == 1:
        choices = [with_time]  # a page on one run says which of its name's runs it shows

    names = next(names for names in choices if len(set(names)) == len(runs))
    for run, name in zip(runs, names, strict=True):
        run.name = name
