"""The run that a command starts or resumes: the locked folder of the run, and the training state to resume from."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from gptmini import checkpoint
from gptmini.runs.find import find_run, named_run
from gptmini.runs.metrics import Line, dropping_later_lines
from gptmini.runs.resume import find_training_state, make_latest, remove_leftovers
from gptmini.runs.run_folder import (
    Identity,
    check_latest,
    identity_of,
    is_run,
    link_latest,
    locked,
    make_run_folder,
    root_of,
    write_config,
)
from gptmini.runs.status import RunStatus, read_status, write_status
from gptmini.system.untrusted import check_plain_folder


@dataclass(eq=False)
class Run:
    """A run whose folder is locked."""

    folder: Path
    root: Path | None  # folder of all runs, if the run is inside one
    resumed: bool  # whether an earlier process started the run
    state: "checkpoint.TrainingState | None" = None  # None: start from the first step
    # Lines for the user, such as skipped checkpoints.
    notes: list[str] = field(default_factory=list)
    end: RunStatus | None = None  # the state that the previous start of the run wrote
    lines: list[Line] = field(default_factory=list)  # lines of metrics.jsonl up to self.step
    overrides: Sequence[str] = ()  # of all starts of this run, each as KEY=VALUE
    log: TextIO | None = None  # train.log, which begin() opens
    identity: Identity = field(init=False)

    def __post_init__(self) -> None:
        """Read the identity of the run, or make one for a new run."""
        self.identity = identity_of(self.folder)

    @property
    def step(self) -> int:
        """Number of optimizer steps that are done when training starts."""
        return 0 if self.state is None else self.state.step

    def is_complete(self, max_steps: int, *, resume_given: bool) -> bool:
        """Whether nothing is left to train: the last of max_steps steps is validated, or a callback ended the run.

        A run that a callback ended continues if max_steps has changed or the user gave resume=. With folder=, it does
        not continue, because a script may repeat the command any number of times.
        """
        state = self.state
        if state is None:
            return False
        if state.step == max_steps == state.validated_step:
            return True
        was_ended = self.end is not None and self.end.state == "ended"
        return was_ended and state.max_steps == max_steps and not resume_given

    def begin(self, config: str, overrides: Sequence[str]) -> None:
        """Prepare the folder for training, and open the log. Call this after every check.

        Files and log lines that were written after the checkpoint are removed or renamed. Afterwards, runs/latest
        points to this run. The argument config is YAML, and overrides are those of all starts of the run.
        """
        if self.resumed:
            remove_leftovers(self.folder)
            self._take_back()

        # Write the configuration first. Without a configuration, the run cannot be resumed, and runs/latest must not
        # point to a run that cannot be resumed.
        self.overrides = overrides
        write_config(config, self.folder, overrides, self.identity)
        write_status(self.folder, RunStatus(state="running", step=self.step))
        if self.root is not None:
            link_latest(self.root, self.folder)
        self.log = (self.folder / "train.log").open("a", encoding="utf-8")

    def _take_back(self) -> None:
        """Remove log lines and rename checkpoints that are later than the state. A full disk changes nothing."""
        newest = -1
        validated = False
        if self.state is not None:
            newest = self.step
            # At step 0, a run that started with trained weights validates them again.
            validated = self.step > 0 and self.state.validated_step == self.step

        with dropping_later_lines(self.folder, newest, validated=validated) as self.lines:
            if self.state is not None:
                for file in make_latest(self.state.path, self.step, self.folder):
                    self.notes.append(f"renamed a later or damaged checkpoint to {file}")

    def close(self) -> None:
        """Close the log. The run has reported the first failed write."""
        if self.log is not None:
            with suppress(OSError):
                self.log.close()


@contextmanager
def open_run(
    resume: str | None, folder: str | None, *, runs_dir: str, name: str | None
) -> Iterator[Run]:
    """Lock the folder of a new run, or of the run to resume, until the end of the block.

    A folder that holds a run resumes this run. None for both means a new folder runs_dir/name/<time>. A new folder that
    is still empty at the end of the block is removed.

    Raises UserError if the folder of a new run holds other files, if another process trains in the folder, if the run
    to resume contains links, or if all its checkpoints are damaged.
    """
    old = resume
    if old is None and folder is not None and is_run(Path(folder).expanduser()):
        old = folder
    if old is not None:
        with _open_existing(Path(old), runs_dir) as run:
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
def _open_existing(path: Path, runs_dir: str) -> Iterator[Run]:
    """Lock the folder of a run to resume, so that no other process writes a later checkpoint."""
    named = named_run(path)
    folder = find_run(named)
    check_plain_folder(folder)
    with locked(folder):
        state, notes = find_training_state(folder if named.is_dir() else named.resolve())
        root = root_of(folder, runs_dir)
        with closing(Run(folder, root, resumed=True, state=state, notes=notes)) as run:
            run.end = read_status(folder)
            yield run
