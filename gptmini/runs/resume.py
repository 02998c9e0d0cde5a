"""From which checkpoint a resumed run goes on, and what becomes of the run's other files."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.files import replacing
from gptmini.runs.find import checkpoints_in
from gptmini.user_error import UserError

if TYPE_CHECKING:  # importing torch takes seconds, and finding a run needs no torch
    from gptmini.checkpoint.training_state import TrainingState


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
        # Latest first; a damaged file counts as of an infinite step, so that the user is told of every damaged file.
        files = sorted(checkpoints_in(path), key=step_of, reverse=True)

    damaged = []
    for file in files:
        try:
            return TrainingState.parse(read_checkpoint(file), file), damaged
        except UserError as error:
            damaged.append(str(error))

    if damaged:
        raise UserError(f"no checkpoint to resume from: {'; '.join(damaged)}")
    return None, []


def adopt(path: Path, step: int, folder: Path) -> list[Path]:
    """Make a checkpoint the newest of its run: later ones, and damaged ones, are set aside.

    So the run goes on from it again if it is killed before anything is saved. A file that is none of checkpoints_in()
    stays as it is, and previous.ckpt becomes a copy of it.

    Args:
        path: the checkpoint that the run goes on from.
        step: optimizer step of that checkpoint.
        folder: of the run.

    Returns the files set aside under their new names, set-aside-<name>-<step>.ckpt; the step of a damaged file is inf.
    Raises OSError: a file could not be copied or renamed.
    """
    aside = []
    if not any(file.samefile(path) for file in checkpoints_in(folder)):
        copy = folder / "checkpoints" / "previous.ckpt"
        with path.open("rb") as original, replacing(copy) as file:
            shutil.copyfileobj(original, file)
            aside += _set_aside_if_later(copy, step)
        path = copy

    for other in checkpoints_in(folder):
        if not other.samefile(path):
            aside += _set_aside_if_later(other, step)
    return aside


def _set_aside_if_later(file: Path, step: int) -> list[Path]:
    """Rename a checkpoint that is of a later step or damaged; return its new name in a list, else an empty one."""
    from gptmini.checkpoint.file import step_of

    if not file.is_file():
        return []
    own_step = step_of(file)
    if own_step <= step:
        return []
    return [file.replace(file.with_name(f"set-aside-{file.stem}-{own_step}.ckpt"))]


def remove_left_overs(folder: Path) -> None:
    """Remove the temporary files that a killed process has left in a run folder, which is locked.

    That of a report stays: a report takes no lock, and may be written at this moment.
    """
    for left_over in (*folder.glob(".*.tmp"), *folder.glob("checkpoints/.*.tmp")):
        if left_over.is_file() and not left_over.name.startswith(".report.html."):
            left_over.unlink()
