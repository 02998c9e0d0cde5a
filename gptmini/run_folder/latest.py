"""The folder runs/latest, which leads to the run that was begun or resumed last."""

import os
from pathlib import Path

from gptmini.files import replace_by_symlink
from gptmini.user_error import UserError

LINKED = ("config.yaml", "train.log", "checkpoints")  # items that runs/latest links to
FORBIDDEN = set('/\\:*?"<>|')  # characters that at least one file system does not allow in names


def check_run_name(name: str) -> None:
    """Raise UserError unless name is a plain folder name other than latest."""
    is_plain = type(name) is str and name.isprintable() and not set(name) & FORBIDDEN
    if not is_plain or name in ("", ".", "..", "latest"):
        raise UserError(f"name must be a plain folder name other than latest, got name={name!r}")


def link_latest(root: str | Path, folder: Path) -> None:
    """Make root/latest a folder of links into a run's folder.

    There is no link to the event files: TensorBoard follows links, and would list the run twice.

    Args:
        root: the folder of all runs.
        folder: the run's folder, root/NAME/TIME.

    Raises UserError: root/latest exists, and no earlier run has made it; it is left as it is.
    Raises OSError: the file system makes no symbolic links.
    """
    latest = Path(root) / "latest"
    check_latest(latest)
    latest.mkdir(parents=True, exist_ok=True)
    for item in LINKED:
        destination = os.path.relpath((folder / item).absolute(), latest.absolute())
        replace_by_symlink(destination, latest / item)


def check_latest(latest: Path) -> None:
    """Raise UserError unless latest is absent, or a folder whose items of a run are links."""
    is_link_or_file = latest.is_symlink() or (latest.exists() and not latest.is_dir())
    if is_link_or_file or any(_is_plain(latest / item) for item in LINKED):
        raise UserError(
            f"{latest} must be absent or a folder of links that an earlier run made; move it away"
        )


def seen_from_here(path: Path) -> Path:
    """Return a path relative to the working directory where it lies inside, and else absolute."""
    here = Path.cwd()
    path = path.absolute()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _is_plain(path: Path) -> bool:
    """Whether path is a file or folder itself, and not a link."""
    return path.exists() and not path.is_symlink()
