"""From which checkpoint a resumed run goes on, and what becomes of the run's other files."""

from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.user_error import UserError

if TYPE_CHECKING:  # importing torch takes seconds, and finding a run needs no torch
    from gptmini.checkpoint.training_state import TrainingState

CHECKPOINTS = ("last", "previous", "best")  # names of a run's checkpoint files, without .ckpt


def find_training_state(path: Path) -> "tuple[TrainingState | None, list[str]]":
    """Read the training state that a run goes on from.

    Args:
        path: a .ckpt file, or a run folder, whose readable checkpoint of the latest step is taken.

    Returns the state, None if nothing was saved yet, and a line about each damaged file that was passed over.
    Raises UserError: the file, or every checkpoint of the folder, is damaged or holds no training state.
    """
    from gptmini.checkpoint.file import read_checkpoint, step_of
    from gptmini.checkpoint.training_state import TrainingState

    files = [path]
    if path.is_dir():
        named = [path / "checkpoints" / f"{name}.ckpt" for name in CHECKPOINTS]
        files = [file for file in named if file.is_file()]
        # Latest first; a damaged file counts as of an infinite step, so that the user is told of every damaged file.
        files.sort(key=step_of, reverse=True)

    damaged = []
    for file in files:
        try:
            return TrainingState.parse(read_checkpoint(file), file), damaged
        except UserError as error:
            damaged.append(str(error))

    if damaged:
        raise UserError(f"no checkpoint to resume from: {'; '.join(damaged)}")
    return None, []


def adopt(path: Path, step: int) -> list[Path]:
    """Set aside the checkpoints of a run that are later than the one that it goes on from, or damaged.

    The checkpoint keeps its name. It is the newest from then on, so that the run goes on from it again if nothing is
    saved before the run is killed.

    Args:
        path: the checkpoint that the run goes on from, in the run's checkpoints folder.
        step: optimizer step of that checkpoint.

    Returns the files set aside under their new names, set-aside-<name>-<step>.ckpt; the step of a damaged file is inf.
    Raises OSError: a file could not be renamed.
    """
    from gptmini.checkpoint.file import step_of

    aside = []
    for name in CHECKPOINTS:
        other = path.with_name(f"{name}.ckpt")
        if other == path or not other.is_file():
            continue
        other_step = step_of(other)
        if other_step > step:
            new_name = other.with_name(f"set-aside-{name}-{other_step}.ckpt")
            aside.append(other.replace(new_name))
    return aside


def remove_left_overs(folder: Path) -> None:
    """Remove the temporary files that a killed process has left in a run folder, which is locked.

    That of a report stays: a report takes no lock, and may be written at this moment.
    """
    for left_over in (*folder.glob(".*.tmp"), *folder.glob("checkpoints/.*.tmp")):
        if left_over.is_file() and not left_over.name.startswith(".report.html."):
            left_over.unlink()
