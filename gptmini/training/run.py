"""The run that a command begins or goes on with: its folder, locked and prepared, and the state that it starts from."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from gptmini.checkpoint.file import read_checkpoint
from gptmini.checkpoint.training_state import TrainingState
from gptmini.files import append_text
from gptmini.report.reading import dropping_later_events, read_scalars
from gptmini.runs import (
    adopt,
    check_latest,
    find_run,
    find_training_state,
    is_run,
    link_latest,
    locked,
    make_run_folder,
    named_run,
    remove_left_overs,
    root_of,
    write_config,
)
from gptmini.training.monitoring.metrics import dropping_later_rows
from gptmini.untrusted import check_plain_folder


class Run:
    """One run, from the moment that its folder is locked.

    Args:
        folder: of the run.
        root: the folder of all runs; None for a run elsewhere.
        resumed: whether the run goes on with what an earlier process began.
        state: what training goes on from; None for the first step.
        notes: lines for the user on how the checkpoint was found.
    """

    log: TextIO  # train.log, which begin() opens; os.devnull in a further process

    def __init__(
        self,
        folder: Path,
        root: Path | None,
        *,
        resumed: bool,
        state: TrainingState | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.root = root
        self.resumed = resumed
        self.state = state
        self.notes = list(notes)
        self.curves: dict[str, list[tuple[int, float]]] = {}  # (step, value) points before, by tag
        self.overrides: Sequence[str] = ()  # all that was typed for this run so far, KEY=VALUE each

    @property
    def step(self) -> int:
        """Optimizer steps that are done when training starts."""
        return 0 if self.state is None else self.state.step

    @property
    def purge_step(self) -> int | None:
        """Events from this step on are superseded; None for a new run, which has none.

        A run without a step done logs everything again, the events of step 0 included.
        """
        if not self.resumed:
            return None
        return self.step + 1 if self.step > 0 else 0

    def is_complete(self, max_steps: int) -> bool:
        """Whether a run of so many steps has taken its last step, and has validated it."""
        state = self.state
        return state is not None and state.step == max_steps == state.validated_step

    def begin(self, config: str, overrides: Sequence[str]) -> None:
        """Make the folder as it must be when training starts, and open the log; to be called after every check.

        What is later than the checkpoint is taken back, and runs/latest leads here from now on.

        Args:
            config: the configuration in YAML.
            overrides: all that was typed for the run so far, KEY=VALUE each.
        """
        if self.resumed:
            remove_left_overs(self.folder)
            self._take_back()
            self.curves = read_scalars(self.folder)

        # The configuration is written first: a run without one cannot be resumed, and latest must not lead to it.
        self.overrides = overrides
        write_config(config, self.folder, overrides)
        if self.root is not None:
            link_latest(self.root, self.folder)
        self.log = append_text(self.folder / "train.log")

    def _take_back(self) -> None:
        """Drop points of curves, and set aside checkpoints, that are later than the state.

        All new files are written before the first of them takes its name, so that a full disk changes nothing.
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
        for file in aside:
            self.notes.append(f"{file} is of a later step, or damaged, and set aside")

    def close(self) -> None:
        """Close the log; an error of its last write was told when writing first failed."""
        if hasattr(self, "log"):
            with suppress(OSError):
                self.log.close()


class SharedRun(Run):
    """A run as a further process has it: the first process has made its folder, and writes there.

    Args:
        folder: the run's folder.
        checkpoint: the file that training goes on from, which the first process has checked; None for the first step.
        resumed: whether the run goes on with what an earlier process began.

    Raises UserError: the checkpoint cannot be read.
    """

    def __init__(self, folder: Path, checkpoint: Path | None, *, resumed: bool) -> None:
        state = None
        if checkpoint is not None:
            contents = read_checkpoint(checkpoint, is_checked=True)
            state = TrainingState.parse(contents, checkpoint)
        super().__init__(folder, None, resumed=resumed, state=state)

    def begin(self, config: str, overrides: Sequence[str]) -> None:
        """Keep the overrides; there is nothing to write."""
        self.overrides = overrides
        self.log = append_text(Path(os.devnull))


@contextmanager
def open_run(
    resume: str | None, folder: str | None, *, runs_dir: str, name: str | None
) -> Iterator[Run]:
    """Lock the folder of the run that a configuration asks for: a new one, or the one that resume leads to.

    The folder stays locked until the end of the block. One that was made here, in which nothing has begun, is removed.

    Args:
        resume: a run folder or a .ckpt file in one; None for a new run.
        folder: of a new run, which may exist and be empty, or hold a run without a checkpoint, which begins again; None
            for runs_dir/name/<time>.
        runs_dir: the folder of all runs.
        name: the run's name.

    Raises UserError: the folder holds something else, another process trains there, or the run to resume holds links or
    has no checkpoint that can be read.
    """
    old = resume
    if old is None and folder is not None and is_run(Path(folder).expanduser()):
        old = folder
    if old is not None:
        with _open_old(Path(old), runs_dir) as run:
            yield run
        return

    place, made = make_run_folder(runs_dir, name, folder)
    root = root_of(place, runs_dir)
    try:
        if root is not None:
            check_latest(root / "latest")
        with locked(place):
            run = Run(place, root, resumed=False)
            try:
                yield run
            finally:
                run.close()
    finally:
        for empty in made:
            with suppress(OSError):
                empty.rmdir()


@contextmanager
def _open_old(path: Path, runs_dir: str) -> Iterator[Run]:
    """Lock the folder of a run to go on with, so that its newest checkpoint stays the newest.

    Args:
        path: the run's folder, or a .ckpt file in it to go on from.
        runs_dir: the folder of all runs.
    """
    named = named_run(path)
    folder = find_run(named)
    check_plain_folder(folder)
    with locked(folder):
        state, notes = find_training_state(folder if named.is_dir() else named.resolve())
        run = Run(folder, root_of(folder, runs_dir), resumed=True, state=state, notes=notes)
        try:
            yield run
        finally:
            run.close()
