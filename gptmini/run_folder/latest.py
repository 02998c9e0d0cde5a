"""The folder runs/latest, which leads to the run that was begun or resumed last."""

import os
import stat
from pathlib import Path

from gptmini.files import replace_by_symlink, replacing
from gptmini.user_error import UserError

LINKED = ("config.yaml", "train.log", "checkpoints")  # items that runs/latest links to
POINTER = "run.txt"  # the file in runs/latest that names the run where there are no symbolic links
LONGEST_NAME = 255  # bytes of the name of a file or folder, on nearly every file system
FORBIDDEN = set('/\\:*?"<>|')  # characters that at least one file system does not allow in names


def check_run_name(name: str) -> None:
    """Raise UserError unless name is a plain folder name other than latest."""
    if not _is_plain_name(name) or name == "latest":
        raise UserError(f"name must be a plain folder name other than latest, got name={name!r}")


def link_latest(root: str | Path, folder: Path) -> None:
    """Make root/latest a folder of links into a run's folder, or of one file that names the run.

    The file, run.txt, takes the place of the links where the system or the file system makes no symbolic links. There
    is no link to the event files: TensorBoard follows links, and would list the run twice.

    Args:
        root: the folder of all runs.
        folder: the run's folder, root/NAME/TIME.

    Raises UserError: root/latest exists, and no earlier run has made it; it is left as it is.
    """
    latest = Path(root) / "latest"
    check_latest(latest)
    latest.mkdir(parents=True, exist_ok=True)
    pointer = latest / POINTER
    for item in LINKED:
        destination = os.path.relpath((folder / item).absolute(), latest.absolute())
        if not replace_by_symlink(destination, latest / item):
            with replacing(pointer) as file:
                file.write(f"{folder.parent.name}/{folder.name}\n".encode())
            return

    # A runs folder that was copied from a file system without links has a file that names an earlier run.
    pointer.unlink(missing_ok=True)


def check_latest(latest: Path) -> None:
    """Raise UserError unless latest is absent, or a folder whose items of a run are links or a file that names it."""
    is_link_or_file = latest.is_symlink() or (latest.exists() and not latest.is_dir())
    pointer = latest / POINTER
    has_foreign_pointer = os.path.lexists(pointer) and _names_in(pointer) is None
    if is_link_or_file or has_foreign_pointer or any(_is_plain(latest / i) for i in LINKED):
        raise UserError(
            f"{latest} must be absent or a folder of links that an earlier run made; move it away"
        )


def followed(path: Path) -> Path:
    """Return the path inside a run for a path inside a folder latest whose run.txt names the run; else path as it is.

    Args:
        path: any path, as runs/latest or runs/latest/checkpoints/best.ckpt.

    Raises UserError: run.txt names no run beside the folder that it lies in. A runs folder may come from a stranger,
    and its run.txt must not lead elsewhere.
    """
    for latest in (path, path.parent, path.parent.parent):
        pointer = latest / POINTER
        if latest.absolute().name != "latest" or not os.path.lexists(pointer):
            continue

        root = latest.absolute().parent
        names = _names_in(pointer)
        if names is None or not root.joinpath(*names).resolve().is_relative_to(root.resolve()):
            raise UserError(
                f"{pointer} must name a run in {root} as NAME/TIME, and does not; "
                "give the run's own folder"
            )
        return seen_from_here(root.joinpath(*names)) / path.relative_to(latest)
    return path


def seen_from_here(path: Path) -> Path:
    """Return a path relative to the working directory where it lies inside, and else absolute."""
    here = Path.cwd()
    path = path.absolute()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _names_in(pointer: Path) -> tuple[str, str] | None:
    """The two names, NAME and TIME, that a file run.txt holds; None if it is no such file."""
    if not stat.S_ISREG(pointer.lstat().st_mode):
        return None

    with pointer.open("rb") as file:
        content = file.read(3 * LONGEST_NAME)  # more than two names and what parts them
    try:
        name, slash, time = content.decode().rstrip("\r\n").partition("/")
    except UnicodeDecodeError:
        return None
    are_short = all(len(part.encode()) <= LONGEST_NAME for part in (name, time))
    are_plain = _is_plain_name(name) and _is_plain_name(time)
    if not slash or not are_short or not are_plain:
        return None
    return name, time


def _is_plain_name(name: object) -> bool:
    """Whether this is the name of a file or folder that every file system allows, without a path."""
    if type(name) is not str or name in ("", ".", ".."):
        return False
    return name.isprintable() and not set(name) & FORBIDDEN


def _is_plain(path: Path) -> bool:
    """Whether path is a file or folder itself, and not a link."""
    return path.exists() and not path.is_symlink()
