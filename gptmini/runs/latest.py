"""The folder runs/latest, which leads to the run that was begun or resumed last."""

import os
from pathlib import Path

from gptmini.files import replace_by_symlink
from gptmini.user_error import UserError

LINKED = ("config.yaml", "train.log", "checkpoints")  # items that runs/latest links to


def link_latest(root: Path, folder: Path) -> None:
    """Make root/latest a folder of links into a run's folder.

    There is no link to the event files: TensorBoard follows links, and would list the run twice.

    Args:
        root: the folder of all runs.
        folder: the run's folder.

    Raises UserError: root/latest exists, and no earlier run has made it; it is left as it is.
    """
    latest = root / "latest"
    check_latest(latest)
    latest.mkdir(parents=True, exist_ok=True)
    for item in LINKED:
        destination = os.path.relpath((folder / item).absolute(), latest.absolute())
        replace_by_symlink(destination, latest / item)


def check_latest(latest: Path) -> None:
    """Raise UserError unless latest is absent, or a folder whose items of a run are links."""
    is_link_or_file = latest.is_symlink() or (latest.exists() and not latest.is_dir())
    items = [latest / item for item in LINKED]
    if is_link_or_file or any(item.exists() and not item.is_symlink() for item in items):
        raise UserError(
            f"{latest} must be absent or a folder of links that an earlier run made; move it away"
        )


def root_of(folder: Path, runs_dir: str) -> Path | None:
    """The folder of all runs that a run lies in, whose `latest` leads to the newest; None for a run elsewhere.

    That is runs_dir, or for a run under another runs_dir the folder around it that has links to its newest run.
    """
    root = Path(runs_dir).expanduser()
    folder = folder.absolute()
    if folder.is_relative_to(root.absolute()):
        return seen_from_here(root)
    for around in (folder.parent, folder.parent.parent):
        if (around / "latest" / "config.yaml").is_symlink():
            return seen_from_here(around)
    return None


def seen_from_here(path: Path) -> Path:
    """Return a path relative to the working directory where it lies inside, and else absolute."""
    here = Path.cwd()
    path = path.absolute()
    return path.relative_to(here) if path.is_relative_to(here) else path
