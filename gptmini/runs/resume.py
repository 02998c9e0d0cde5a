"""From which checkpoint a resumed run goes on, and what becomes of the run's other files."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.files import replace_by_link
from gptmini.user_error import UserError

if TYPE_CHECKING:  # importing torch takes seconds, and finding a run needs no torch
    from gptmini.checkpoint.training_state import TrainingState

CHECKPOINTS = ("last", "previous", "best")  # names of a run's checkpoint files, without .ckpt

# Temporary files of what a run writes whole or not at all, in its folder.
LEFT_OVERS = (
    ".config.yaml.*.tmp",
    ".events.out.tfevents.*.tmp",
    ".metrics.csv.*.tmp",
    "checkpoints/.*.tmp",
)


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
    """Make a checkpoint the run's last.ckpt, and set aside the run's checkpoints that are later or damaged.

    Args:
        path: the checkpoint that the run goes on from, in the run's checkpoints folder.
        step: optimizer step of that checkpoint.

    Returns the files set aside under their new names, set-aside-<name>-<step>.ckpt; the step of a damaged file is inf.
    Raises OSError: a file could not be renamed, linked or copied, and every file has its old name.
    """
    from gptmini.checkpoint.file import step_of

    aside: dict[Path, Path] = {}  # new name of each file by its old name
    try:
        for name in CHECKPOINTS:
            other = path.with_name(f"{name}.ckpt")
            if not other.is_file() or other.samefile(path):
                continue
            other_step = step_of(other)
            if other_step > step:
                new_name = other.with_name(f"set-aside-{name}-{other_step}.ckpt")
                aside[other] = other.replace(new_name)

        last = path.with_name("last.ckpt")
        if not last.exists() or not last.samefile(path):
            replace_by_link(path, last)
    except OSError:
        for old_name, new_name in aside.items():
            new_name.replace(old_name)
        raise
    return list(aside.values())


def remove_left_overs(folder: Path) -> None:
    """Remove the temporary files that a process left which was killed while it wrote a run folder, which is locked.

    So are folders of shards that no checkpoint names. The temporary file of a report stays: a report takes no lock, and
    may be written at this moment.
    """
    for pattern in LEFT_OVERS:
        for left_over in folder.glob(pattern):
            if left_over.is_file():
                left_over.unlink()
            elif left_over.is_dir() and not left_over.is_symlink():
                shutil.rmtree(left_over, ignore_errors=True)
    if any((folder / "checkpoints").glob("*.shards")):
        from gptmini.model.shard_writing import remove_unnamed

        remove_unnamed(folder / "checkpoints")
