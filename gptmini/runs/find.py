"""The run, and its checkpoint, for a path that a user typed; every command uses these functions."""

import re
from datetime import datetime
from pathlib import Path

from gptmini.runs.folder import STAMP
from gptmini.runs.latest import seen_from_here
from gptmini.user_error import UserError

# The name of a run's folder: its time, and a number where several runs began in the same second.
NAME_WITH_TIME = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:_(\d{1,9}))?")


def named_run(path: str | Path) -> Path:
    """Return the run folder or file that a path stands for, which every command that takes a run asks for.

    A folder of runs, as runs/NAME, stands for the newest run in it, and root/latest for the run that it leads to. Every
    other path stands for itself.

    Raises UserError: the path does not exist, is neither a file nor a folder, or is the folder of all runs, where it is
    not clear which name is meant.
    """
    if not str(path):
        raise UserError("the name of a run must not be empty; runs/latest is the newest run")
    path = Path(path).expanduser()
    if not path.exists():
        raise UserError(
            f"{path} does not exist; give a run folder (runs/latest) or a .ckpt file in one"
        )
    if not path.is_file() and not path.is_dir():
        raise UserError(f"{path} must be a run folder or a .ckpt file, and is neither")

    is_run = (path / "config.yaml").exists() or (path / "checkpoints").is_dir()
    if path.is_file() or is_run:
        return path

    is_of_all = (path / "latest").exists()
    runs = _runs_in(path)
    if runs and not is_of_all:
        return runs[-1]
    names = sorted(set(runs) | {name for name in path.iterdir() if _runs_in(name)})
    if names:
        raise UserError(
            f"{path} holds the runs of every name; give {path / 'latest'}, "
            f"or the runs of one name for their newest, as in {names[-1]}"
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
    path = Path(path)
    newest = named_run(path)
    if newest != path and newest.parent == path:
        return [seen_from_here(run) for run in _runs_in(path)]
    return [find_run(path)]


def every_run(folder: str | Path) -> list[Path]:
    """Return every run in a folder of all runs, or in that of one name, oldest first; an empty list if it holds none.

    Raises UserError: there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder} must be a folder of runs, and there is no such folder")
    if (folder / "config.yaml").is_file() and not (folder / "config.yaml").is_symlink():
        return [folder]
    runs = _runs_in(folder)
    for name in folder.iterdir():
        is_latest = name.name == "latest"
        if name.is_dir() and not is_latest:
            runs += _runs_in(name)
    return sorted(runs, key=_begun)


def find_checkpoint(path: str | Path) -> Path:
    """Return a checkpoint file as it is, and for a run its best.ckpt, or else its last.ckpt.

    Args:
        path: a .ckpt file, a run folder, a folder of runs, or root/latest.

    Raises UserError: the path stands for no run, or the run holds neither checkpoint.
    """
    path = named_run(path)
    if path.is_file():
        return path
    for name in ("best.ckpt", "last.ckpt"):
        candidate = path / "checkpoints" / name
        if candidate.is_file():
            return candidate
    raise UserError(
        f"{path} holds no checkpoints/best.ckpt or checkpoints/last.ckpt; "
        "train first, or give a file"
    )


def has_checkpoint(folder: Path) -> bool:
    """Whether a run has saved anything that it can go on from."""
    return any((folder / "checkpoints").glob("[!.]*.ckpt"))


def _runs_in(folder: Path) -> list[Path]:
    """The runs directly in a folder, in the order in which they began; root/latest is none of them."""
    configs = folder.glob("*/config.yaml")
    # Reading a named pipe would wait for whoever writes into it.
    is_run = [path for path in configs if path.is_file() and not path.is_symlink()]
    return sorted((path.parent for path in is_run), key=_begun)


def _begun(run: Path) -> tuple[str, int, str]:
    """When a run began, as a key to sort by: the time in the folder's name.

    The times of its files would say when it was resumed or copied. A folder that was given another name counts as of
    the time when its config.yaml was written.
    """
    named = NAME_WITH_TIME.fullmatch(run.name)
    if named is not None:
        return named[1], int(named[2] or 1), run.name
    written = datetime.fromtimestamp((run / "config.yaml").stat().st_mtime)
    return written.strftime(STAMP), 1, run.name
