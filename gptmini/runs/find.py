"""The run, and its checkpoint, for a path that a user typed; every command uses these functions."""

import re
from pathlib import Path

from gptmini.runs.run_folder import identity_of, seen_from_here
from gptmini.user_error import UserError

# A run's checkpoint files, without .ckpt. Other files beside them, which were set aside or which a user has put there,
# are read where they are named alone.
CHECKPOINTS = ("last", "previous", "best")

# The name of a run's folder: its time, and a number where several runs began in the same second.
NAME_WITH_TIME = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:_(\d+))?")


def named_run(path: str | Path, *, saved: bool = False) -> Path:
    """Return the run folder or file that a path stands for, which every command that takes a run asks for.

    A folder of runs, as runs/NAME, stands for the newest run in it, and root/latest for the run that it leads to. Every
    other path stands for itself.

    Args:
        path: what the user typed.
        saved: True to take the newest run with a checkpoint, if any run in the folder has one.

    Raises UserError: the path is empty, as an unset variable of a shell is, does not exist, or is the folder of all
    runs, where it is not clear which run is meant.
    """
    if not str(path):
        raise UserError("the name of a run must not be empty; runs/latest is the newest run")
    path = Path(path).expanduser()
    if not path.exists():
        raise UserError(
            f"{path} does not exist; give a run folder (runs/latest) or a .ckpt file in one"
        )
    is_run = (path / "config.yaml").exists() or (path / "checkpoints").is_dir()
    if path.is_file() or is_run:
        return path

    is_of_all = (path / "latest").exists()
    runs = _runs(path, "*/config.yaml")
    if runs and not is_of_all:
        usable = [run for run in runs if has_checkpoint(run)] if saved else []
        return (usable or runs)[-1]

    runs = every_run(path)
    if runs:
        raise UserError(
            f"{path} holds the runs of every name; give {path / 'latest'}, or one run, as {runs[-1]}"
        )
    return path


def find_run(path: str | Path) -> Path:
    """Return the folder of the run that a path belongs to, relative to the working directory where it lies inside.

    Args:
        path: a run folder, a folder of runs, root/latest, or a .ckpt file of a run.

    Raises UserError: the path stands for no run.
    """
    path = named_run(path)

    # The config.yaml of a folder is resolved, because that of root/latest is a link into the run's folder.
    folder = (path / "config.yaml").resolve().parent
    if path.is_file():
        folder = path.resolve().parent.parent
    if not (folder / "config.yaml").is_file():
        raise UserError(
            f"{path} belongs to no run: {folder / 'config.yaml'} is missing; "
            "a run keeps it beside its checkpoints folder"
        )
    return seen_from_here(folder)


def find_runs(path: str | Path) -> list[Path]:
    """Return every run in a folder of runs, oldest first; of any other path the one run that find_run finds.

    Raises UserError: the path stands for no run.
    """
    path = Path(path).expanduser()
    if named_run(path) == path:
        return [find_run(path)]
    return [seen_from_here(run) for run in _runs(path, "*/config.yaml")]


def every_run(folder: str | Path) -> list[Path]:
    """Return every run in a folder of all runs, or in that of one name, oldest first; an empty list if it holds none.

    A run's own folder stands for that run.
    """
    folder = Path(folder)
    return _runs(folder, "config.yaml") or _runs(folder, "*/config.yaml", "*/*/config.yaml")


def find_checkpoint(path: str | Path) -> Path:
    """Return a checkpoint file as it is, and for a run its best.ckpt, or else its newest.

    Args:
        path: a .ckpt file, a run folder, a folder of runs, for the newest run in it with a checkpoint, or root/latest.

    Raises UserError: the path stands for no run, or the run has saved nothing.
    """
    path = named_run(path, saved=True)
    if path.is_file():
        return path
    checkpoints = checkpoints_in(path)
    best = path / "checkpoints" / "best.ckpt"
    if best in checkpoints:
        return best
    if checkpoints:
        return checkpoints[0]
    raise UserError(
        f"{path} holds no checkpoints/best.ckpt or checkpoints/last.ckpt; "
        "train first, or give a file"
    )


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints of a run from which it can go on, last.ckpt first; damaged ones are among them."""
    files = [folder / "checkpoints" / f"{name}.ckpt" for name in CHECKPOINTS]
    return [file for file in files if file.is_file()]


def has_checkpoint(folder: Path) -> bool:
    """Whether a run has saved anything that it can go on from."""
    return bool(checkpoints_in(folder))


def _runs(folder: Path, *patterns: str) -> list[Path]:
    """The runs whose config.yaml fits a pattern, in the order in which they began; root/latest, of links, is none."""
    configs = [path for pattern in patterns for path in folder.glob(pattern)]
    is_run = [path for path in configs if path.is_file() and not path.is_symlink()]
    return sorted((path.parent for path in is_run), key=_begun)


def _begun(run: Path) -> tuple[str, int, str]:
    """When a run began, as a key to sort by: the time in its folder's name, or else the time in its config.yaml.

    The times of its files would say when it was resumed or copied.
    """
    named = NAME_WITH_TIME.fullmatch(run.name)
    if named is not None:
        return named[1], int(named[2] or 1), run.name
    return identity_of(run).begun, 1, run.name
