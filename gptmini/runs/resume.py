"""Choose the checkpoint that a run resumes from, and set aside the run's later files."""

import shutil
from pathlib import Path

from gptmini import checkpoint
from gptmini.runs.find import checkpoints_in
from gptmini.system.errors import UserError
from gptmini.system.files import replacing


def find_training_state(path: Path) -> "tuple[checkpoint.TrainingState | None, list[str]]":
    """Read the training state of a .ckpt file, or of the readable checkpoint with the highest step in a run folder.

    Return None if the run has no checkpoint, and one line for each damaged checkpoint that was skipped. Raises
    UserError if every file is damaged or has no training state.
    """
    files = [path]
    if path.is_dir():
        # Try the latest checkpoint first. For a damaged file, step_of returns infinity. Therefore damaged files come
        # before the latest checkpoint and are reported.
        files = sorted(checkpoints_in(path), key=checkpoint.step_of, reverse=True)

    damaged = []
    for file in files:
        try:
            return checkpoint.TrainingState.parse(checkpoint.read_checkpoint(file), file), damaged
        except UserError as error:
            damaged.append(str(error))

    if damaged:
        raise UserError(f"cannot resume from any checkpoint: {'; '.join(damaged)}")
    return None, []


def make_latest(path: Path, step: int, folder: Path) -> list[Path]:
    """Make a checkpoint the latest of its run, so that a run killed before its next save resumes from it again.

    Rename later and damaged checkpoints to set-aside-<name>-<step>.ckpt, where the step of a damaged file is inf. If
    `path` is not in checkpoints_in(), copy it to previous.ckpt. Return the new names.
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
    """Rename a checkpoint that is damaged or later than `step`. Return its new name in a list."""
    if not file.is_file():
        return []
    file_step = checkpoint.step_of(file)
    if file_step <= step:
        return []
    return [file.replace(file.with_name(f"set-aside-{file.stem}-{file_step}.ckpt"))]


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of a killed process from a locked run folder.

    Keep the temporary file of a report, because another process may be writing this report. `gptmini report` does not
    lock the run.
    """
    for left_over in (*folder.glob(".*.tmp"), *folder.glob("checkpoints/.*.tmp")):
        if left_over.is_file() and not left_over.name.startswith(".report.html."):
            left_over.unlink()
