"""The run that a command begins or goes on with: its folder, locked and prepared, and the state that it starts from."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TextIO

from gptmini.files import append_text, check_plain
from gptmini.model.checkpoint import read_checkpoint
from gptmini.model.training_state import TrainingState
from gptmini.report.reading import dropping_later_events, read_overrides, read_scalars
from gptmini.run_folder import (
    adopt,
    find_run,
    find_training_state,
    link_latest,
    locked,
    named_run,
    new_run_folder,
    remove_left_overs,
    seen_from_here,
    write_config,
)
from gptmini.training.monitoring.metrics import dropping_later_rows

# Folders in which a logger keeps links of its own. Weights & Biases links to its newest run and log inside the folder
# wandb. In each of its runs, debug-core.log links to a file in the user's cache; Weights & Biases never writes through
# that link.
LINKING = {"wandb": ("debug-core.log",)}


class Run(ABC):
    """One run, from the moment that it is found or planned; a context manager.

    Leaving its with block unlocks the run folder and closes the log. Of several processes only the first finds, locks
    and writes a run; the others are told of it, and hold a SharedRun.
    """

    resumed: bool  # whether the run goes on with what an earlier process began
    folder: Path  # the run folder; of a NewRun only after begin()
    root: Path  # the folder of all runs, which TensorBoard can show
    state: TrainingState | None = None  # what training goes on from; None: the first step
    notes: Sequence[str] = ()  # lines for the user on how the checkpoint was found
    purge_step: int | None = None  # events from this step on are superseded; None: there are none
    curves: dict[str, list[tuple[int, float]]]  # (step, value) points logged before, by tag
    overrides: Sequence[str]  # all that was typed for this run so far, KEY=VALUE each
    log: TextIO  # train.log, which begin() opens; os.devnull in a SharedRun

    def __init__(self) -> None:
        self.curves = {}
        self.overrides = ()
        self._stack = ExitStack()

    @property
    def step(self) -> int:
        """Optimizer steps that are done when training starts."""
        return 0 if self.state is None else self.state.step

    @abstractmethod
    def begin(self, config: str, overrides: Sequence[str]) -> None:
        """Make the folder as it must be when training starts, and open the log; to be called after every check.

        Args:
            config: the configuration in YAML.
            overrides: what was typed this time, KEY=VALUE each.
        """

    def __enter__(self) -> "Run":
        """Return the run; its folder may be locked already."""
        return self

    def __exit__(self, *error: object) -> None:
        """Unlock the folder and close the log."""
        self._stack.close()

    def _lock(self) -> None:
        self._stack.enter_context(locked(self.folder))

    def _open_log(self, path: Path | None = None) -> None:
        self.log = append_text(path or self.folder / "train.log")
        self._stack.callback(_close, self.log)


class NewRun(Run):
    """A run that starts from the first step, in a folder of its own: runs_dir/name/<time>, or <time>_<label>."""

    resumed = False

    def __init__(self, runs_dir: str, name: str, label: str, job: str | None = None) -> None:
        super().__init__()
        self._job = job
        self.root = Path(runs_dir)
        self.folder = self.root
        self._name = name
        self._label = label

    def begin(self, config: str, overrides: Sequence[str]) -> None:
        """Make and lock the folder, and open the log."""
        self.folder = new_run_folder(
            self.root,
            self._name,
            config,
            self._label,
            job=self._job,
            overrides=overrides,
        )
        self._lock()
        self._open_log()
        self.overrides = overrides


class ResumedRun(Run):
    """A run that goes on in its folder, which is locked from the start, so that its newest checkpoint stays the newest.

    Args:
        path: the run's folder, or a .ckpt file in it to go on from.
        name: the run's name. Where the folder still lies below a folder of this name, `latest` will lead to the run.

    The folder of all runs follows from where the run's folder stands: what its config.yaml says may be a stranger's.

    Raises UserError: there is no such run, the folder holds links or pipes, another process trains it, or no checkpoint
    of it can be read.
    """

    resumed = True

    def __init__(self, path: Path, name: str) -> None:
        super().__init__()
        named = named_run(path)
        self.folder = find_run(named)
        check_plain(self.folder, linking=LINKING)
        place = self.folder.absolute().parent
        self._is_in_place = place.name == name
        self.root = seen_from_here(place.parent if self._is_in_place else place)

        self._lock()
        try:
            source = self.folder if named.is_dir() else named.resolve()
            self.state, self.notes = find_training_state(source)
        except BaseException:  # there is no with block yet that would unlock the folder
            self._stack.close()
            raise

        # A run without a step done logs everything again, the events of step 0 included.
        self.purge_step = 0
        if self.step > 0:
            self.purge_step = self.step + 1

    def begin(self, config: str, overrides: Sequence[str]) -> None:
        """Take back what is later than the checkpoint, write the configuration that now counts, and open the log."""
        remove_left_overs(self.folder)
        self.overrides = [*read_overrides(self.folder), *overrides]
        self._take_back()
        write_config(config, self.folder)
        if self._is_in_place:
            link_latest(self.root, self.folder)
        self.curves = read_scalars(self.folder)
        self._open_log()

    def _take_back(self) -> None:
        """Drop points of curves, and set aside checkpoints, that are later than the state.

        An error before the new files take their places changes nothing.
        """
        newest_event = -1
        validated = False
        if self.state is not None:
            newest_event = self.step
            # A run without a step done validates its first weights again, if they were trained before.
            validated = self.step > 0 and self.state.validated_step == self.step

        aside: list[Path] = []
        with (
            dropping_later_events(self.folder, newest_event, validated=validated),
            dropping_later_rows(self.folder, newest_event, validated=validated),
        ):
            if self.state is not None:
                aside = adopt(self.state.path, self.step)

        lines = [f"{file} is of a later step, or damaged, and set aside" for file in aside]
        self.notes = [*self.notes, *lines]


class SharedRun(Run):
    """A run as a further process has it: the first process has made its folder, and writes there.

    Args:
        folder: the run's folder.
        checkpoint: the file that training goes on from, which the first process has checked; None for the first step.
        resumed: whether the run goes on with what an earlier process began.

    Raises UserError: the checkpoint cannot be read.
    """

    def __init__(self, folder: Path, checkpoint: Path | None, *, resumed: bool) -> None:
        super().__init__()
        self.folder = folder
        self.root = folder.parent.parent
        self.resumed = resumed
        if checkpoint is not None:
            contents = read_checkpoint(checkpoint, is_checked=True)
            self.state = TrainingState.parse(contents, checkpoint)

    def begin(self, config: str, overrides: Sequence[str]) -> None:
        """Keep the overrides; there is nothing to write."""
        self.overrides = overrides
        self._open_log(Path(os.devnull))


def open_run(
    resume: str | None, *, runs_dir: str, name: str, label: str = "", job: str | None = None
) -> Run:
    """Return the run that a configuration asks for: a new one, or the one that resume leads to.

    Args:
        resume: a run folder or a .ckpt file in one; None for a new run.
        runs_dir: the folder of all runs, for a new run.
        name: the run's name, which is the folder below runs_dir that a new run is made in.
        label: what tells a new run from others; ends the name of its folder.
        job: what names the job that goes on with a new run when it is started again; None for no such job.

    Raises UserError: the run to resume cannot go on, as for ResumedRun.
    """
    if resume is None:
        return NewRun(runs_dir, name, label, job)
    return ResumedRun(Path(resume), name)


def _close(file: TextIO) -> None:
    """Close a file. An error of its last write is not raised again: the user was told when writing first failed."""
    with suppress(OSError):
        file.close()
