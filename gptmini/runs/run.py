"""The run that a command begins or goes on with: its folder, locked and prepared, and the state that it starts from."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gptmini.runs.find import find_run, named_run
from gptmini.runs.metrics import Line, dropping_later_lines
from gptmini.runs.resume import adopt, find_training_state, remove_left_overs
from gptmini.runs.run_folder import (
    check_latest,
    identity_of,
    is_run,
    link_latest,
    locked,
    make_run_folder,
    root_of,
    write_config,
)
from gptmini.runs.state import RunState, read_state, write_state
from gptmini.untrusted import check_plain_folder

if TYPE_CHECKING:  # importing torch takes seconds, and finding a run needs no torch
    from gptmini.checkpoint.training_state import TrainingState


class Run:
    """One run, from the moment that its folder is locked.

    Args:
        folder: of the run.
        root: the folder of all runs; None for a run elsewhere.
        resumed: whether the run goes on with what an earlier process began.
        state: what training goes on from; None for the first step.
        notes: lines for the user on how the checkpoint was found.
    """

    def __init__(
        self,
        folder: Path,
        root: Path | None,
        *,
        resumed: bool,
        state: "TrainingState | None" = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.root = root
        self.resumed = resumed
        self.state = state
        self.notes = list(notes)
        self.identity = identity_of(folder)
        self.end: RunState | None = None  # how the run's last start ended, or that it was killed
        self.lines: list[Line] = []  # of metrics.jsonl, up to the step
        self.overrides: Sequence[str] = ()  # all that was typed for this run so far, KEY=VALUE each
        self.log: TextIO | None = None  # train.log, which begin() opens

    @property
    def step(self) -> int:
        """Optimizer steps that are done when training starts."""
        return 0 if self.state is None else self.state.step

    def is_complete(self, max_steps: int, *, asked_to_go_on: bool) -> bool:
        """Whether a run of so many steps has nothing left to train.

        It has taken its last step, and has validated it; or a callback has ended it, as EarlyStopping or the pruner of
        a sweep. With the latter the run goes on where it is now to take another number of steps, or where
        asked_to_go_on says that resume= was typed: a command with folder= is typed again without looking at the run.
        """
        state = self.state
        if state is None:
            return False
        if state.step == max_steps == state.validated_step:
            return True
        was_ended = self.end is not None and self.end.state in ("ended", "pruned")
        return was_ended and state.max_steps == max_steps and not asked_to_go_on

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

        # The configuration is written first: a run without one cannot be resumed, and latest must not lead to it.
        self.overrides = overrides
        write_config(config, self.folder, overrides, self.identity)
        write_state(self.folder, RunState(state="running", step=self.step))
        if self.root is not None:
            link_latest(self.root, self.folder)
        self.log = (self.folder / "train.log").open("a", encoding="utf-8")

    def _take_back(self) -> None:
        """Drop what was logged, and set aside checkpoints, later than the state.

        The new metrics.jsonl is written before it takes its name, so that a full disk changes nothing.
        """
        newest = -1
        validated = False
        if self.state is not None:
            newest = self.step
            # A run without a step done validates its first weights again, if they were trained before.
            validated = self.step > 0 and self.state.validated_step == self.step

        aside: list[Path] = []
        with dropping_later_lines(self.folder, newest, validated=validated) as self.lines:
            if self.state is not None:
                aside = adopt(self.state.path, self.step, self.folder)
        for file in aside:
            self.notes.append(f"{file} is of a later step, or damaged, and set aside")

    def close(self) -> None:
        """Close the log; an error of its last write was told when writing first failed."""
        if self.log is not None:
            with suppress(OSError):
                self.log.close()


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
        with locked(place), closing(Run(place, root, resumed=False)) as run:
            yield run
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
        root = root_of(folder, runs_dir)
        with closing(Run(folder, root, resumed=True, state=state, notes=notes)) as run:
            run.end = read_state(folder)
            yield run
