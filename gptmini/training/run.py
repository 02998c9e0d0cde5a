"""The run that a command begins or goes on with: its folder, locked and prepared, and the state that it starts from."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TextIO

from gptmini.model.checkpoint import TrainingState
from gptmini.report.reading import dropping_later_events, read_overrides, read_scalars
from gptmini.run_folder import (
    adopt,
    find_run,
    find_training_state,
    link_latest,
    locked,
    new_run_folder,
    write_config,
)
from gptmini.training.trainer import is_first_process


class Run(ABC):
    """One run, from the moment that it is found or planned; leaving its block unlocks its folder and closes its log.

    Of several processes only the first locks and writes: each method that writes asks for that itself.
    """

    resumed: bool  # whether it goes on with what an earlier process began
    folder: Path  # of a new run only once it has begun
    state: TrainingState | None = None  # None: it starts from the first step
    notes: Sequence[str] = ()  # what a user should know of how it was found
    purge_step: int | None = None  # events from this step on are written again
    curves: dict[str, list[tuple[int, float]]]  # (step, value) points of before, by tag
    overrides: Sequence[str]  # all that was typed for it so far, KEY=VALUE each

    def __init__(self) -> None:
        self.curves = {}
        self.overrides = ()
        self.log: TextIO
        self._stack = ExitStack()

    @property
    def step(self) -> int:
        """Optimizer steps that are done."""
        return 0 if self.state is None else self.state.step

    @abstractmethod
    def begin(self, config: str, overrides: Sequence[str]) -> None:
        """Make the folder as it must be when training starts; called when every check has passed.

        config is the configuration in YAML, overrides what was typed this time.
        """

    def __enter__(self) -> "Run":
        """Begin the block that the folder is locked for."""
        return self

    def __exit__(self, *error: object) -> None:
        """Unlock the folder and close the log."""
        self._stack.close()

    def _lock(self) -> None:
        if is_first_process():
            self._stack.enter_context(locked(self.folder))

    def _open_log(self) -> None:
        path = self.folder / "train.log" if is_first_process() else Path(os.devnull)
        self.log = path.open("a", encoding="utf-8")
        self._stack.callback(_close, self.log)


class NewRun(Run):
    """A run that starts from the first step, in a folder of its own."""

    resumed = False

    def __init__(self, runs_dir: str, name: str) -> None:
        super().__init__()
        self.folder = Path(runs_dir)
        self._name = name

    def begin(self, config: str, overrides: Sequence[str]) -> None:
        """Make and lock the folder."""
        if is_first_process():
            self.folder = new_run_folder(self.folder, self._name, config)
        self._lock()
        self._open_log()
        self.overrides = overrides


class ResumedRun(Run):
    """A run that goes on in its folder, locked from the start, so that its newest checkpoint stays the newest."""

    resumed = True

    def __init__(self, path: Path, runs_dir: str) -> None:
        """Lock the run of a folder or a .ckpt file, and read the checkpoint that it goes on from.

        Raises UserError: there is no such run, another process trains it, or no checkpoint of it can be read.
        """
        super().__init__()
        self.folder = find_run(path)
        self._runs_dir = runs_dir
        self._lock()
        try:
            self.state, self.notes = find_training_state(self.folder if path.is_dir() else path.resolve())
        except BaseException:
            self._stack.close()
            raise
        self.purge_step = self.step + 1 if self.step else 0

    def begin(self, config: str, overrides: Sequence[str]) -> None:
        """Take back what is later than the checkpoint, and keep the configuration that now counts."""
        if is_first_process():
            self.overrides = [*read_overrides(self.folder), *overrides]
            self._take_back()
            write_config(config, self.folder)
            link_latest(self._runs_dir, self.folder)
            self.curves = read_scalars(self.folder)
        self._open_log()

    def _take_back(self) -> None:
        """Drop events and set aside checkpoints that are later than the state; on an error nothing has changed."""
        validated = self.state is not None and self.state.validated_step == self.step
        newest_event = -1 if self.state is None else self.step
        aside: list[Path] = []
        with dropping_later_events(self.folder, newest_event, validated=validated):
            if self.state is not None:
                aside = adopt(self.state.path, self.step)
        self.notes = [*self.notes, *(f"{file} is of a later step, or damaged, and set aside" for file in aside)]


def open_run(resume: str | None, *, runs_dir: str, name: str) -> Run:
    """The run that a configuration asks for: a new one, or one to go on with."""
    if resume is None:
        return NewRun(runs_dir, name)
    return ResumedRun(Path(resume), runs_dir)


def _close(file: TextIO) -> None:
    """Close a file, whatever it could not write: that was said when it failed."""
    with suppress(OSError):
        file.close()
