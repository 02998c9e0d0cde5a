"""The folder of a run, runs/<name>/<time>/, which one process writes at a time, and runs/latest, which leads to it.

This module also decides from which checkpoint a resumed run goes on, and what becomes of the run's other checkpoints.
"""

import datetime
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini import __version__
from gptmini.checks import UserError
from gptmini.files import replace_by_link, replace_by_symlink, replacing

if TYPE_CHECKING:  # importing torch takes seconds, and finding a run needs no torch
    from gptmini.model.training_state import TrainingState

CHECKPOINTS = ("last", "previous", "best")  # names of a run's checkpoint files, without .ckpt
LINKED = ("config.yaml", "train.log", "checkpoints")  # items that runs/latest links to
FIRST_VERSION = "0.1.0"  # the only version of gptmini that did not write its version into a run
# First major and minor version whose runs can be resumed. Older runs name modules that have moved since, and store the
# optimizer's state by number instead of by name.
OLDEST_RESUMABLE = (0, 2)
LONGEST_LABEL = (
    60  # characters; with the time before them they fit into a line of TensorBoard's list of runs
)
FORBIDDEN = set('/\\:*?"<>|')  # characters that at least one file system does not allow in names


def check_run_name(name: str) -> None:
    """Raise UserError unless name is a plain folder name other than latest."""
    is_plain = type(name) is str and name.isprintable() and not set(name) & FORBIDDEN
    if not is_plain or name in ("", ".", "..", "latest"):
        raise UserError(f"name must be a plain folder name other than latest, got name={name!r}")


def new_run_folder(root: str | Path, name: str, config: str, label: str = "") -> Path:
    """Make a run's folder, write its config.yaml, and let root/latest lead to it.

    Args:
        root: folder of all runs.
        name: the run's name.
        config: the run's configuration in YAML.
        label: what tells the run from others, in any characters; empty for none.

    Returns root/name/<time> or root/name/<time>_<label>, with _2 and so on at the end where another run has that name.
    Raises UserError: root/latest exists, and no earlier run has made it.
    """
    _check_latest(Path(root) / "latest")
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    if label:
        stamp += f"_{_file_name_of(label)}"
    folder = Path(root) / name / stamp
    attempt = 1
    while True:
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            attempt += 1
            folder = folder.with_name(f"{stamp}_{attempt}")

    # The configuration is written first: a run without one cannot be resumed, and latest must not lead to it.
    write_config(config, folder)
    link_latest(root, folder)
    return folder


def _file_name_of(label: str) -> str:
    """A label as part of a file name: at most LONGEST_LABEL English letters, digits and . _ + -, others as hyphens.

    So the name is allowed on every file system, and resume= takes the path without quotes.
    """
    plain = re.sub(r"[^A-Za-z0-9_.+-]+", "-", label)
    return plain[:LONGEST_LABEL].rstrip(".-")  # a last dot is not allowed on Windows


def write_config(config: str, folder: Path) -> None:
    """Write config.yaml into a run folder: the version of gptmini that writes it, then the configuration in YAML."""
    text = f"version: {__version__} # of gptmini, which wrote this run\n{config}"
    with replacing(folder / "config.yaml") as file:
        file.write(text.encode("utf-8"))


def read_config(folder: Path) -> str:
    """Return the text of a run's config.yaml; UserError if it has YAML aliases, a few of which can mean terabytes."""
    import yaml

    path = folder / "config.yaml"
    text = path.read_text(encoding="utf-8")
    has_aliases = any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text))
    if has_aliases:
        raise UserError(f"{path} must hold plain values, got aliases")
    return text


def check_version(version: object, folder: Path) -> None:
    """Raise UserError unless this version of gptmini can go on with a run that another version wrote.

    Args:
        version: the value of version in the run's config.yaml; None if there is none.
        folder: the run's folder, for the error message.
    """
    written_by = FIRST_VERSION if version is None else version
    numbers = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})\.[0-9]{1,4}", str(written_by))
    if numbers is None:
        raise UserError(
            f"{folder / 'config.yaml'} must name the version of gptmini that wrote it, "
            f"got {version!r}"
        )

    # The last number of a version never decides whether a run can be resumed.
    own_major, own_minor = __version__.split(".")[:2]
    own = (int(own_major), int(own_minor))
    theirs = (int(numbers[1]), int(numbers[2]))
    if not OLDEST_RESUMABLE <= theirs <= own:
        raise UserError(
            f"{folder} was begun by gptmini {written_by}, which {__version__} cannot go on with; "
            f"install gptmini {written_by}, or begin a new run"
        )


def link_latest(root: str | Path, folder: Path) -> None:
    """Make root/latest a folder of links into a run's folder.

    There is no link to the event files: TensorBoard follows links, and would list the run twice.
    Raises UserError: root/latest exists, and no earlier run has made it; it is left as it is.
    """
    latest = Path(root) / "latest"
    _check_latest(latest)
    latest.mkdir(parents=True, exist_ok=True)
    for item in LINKED:
        destination = os.path.relpath((folder / item).absolute(), latest.absolute())
        replace_by_symlink(destination, latest / item)


def find_run(path: str | Path) -> Path:
    """Return the folder of the run that a path belongs to, relative to the working directory where it lies inside.

    Args:
        path: a run folder, root/latest, or a .ckpt file of a run.

    Raises UserError: the path does not exist, or belongs to no run.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(
            f"{path} does not exist; give a run folder (runs/latest) or a .ckpt file in one"
        )

    # The config.yaml of a folder is resolved, because that of root/latest is a link into the run's folder.
    folder = (path / "config.yaml").resolve().parent
    if path.is_file():
        folder = path.resolve().parent.parent

    if not (folder / "config.yaml").is_file():
        runs = sorted(path.glob("*/config.yaml")) if path.is_dir() else []
        hint = "a run keeps it beside its checkpoints folder"
        if runs:
            hint = f"did you mean {runs[-1].parent}?"
        raise UserError(f"{path} belongs to no run: {folder / 'config.yaml'} is missing; {hint}")

    return seen_from_here(folder)


def seen_from_here(path: Path) -> Path:
    """Return a path relative to the working directory where it lies inside, and else absolute."""
    here = Path.cwd()
    path = path.absolute()
    return path.relative_to(here) if path.is_relative_to(here) else path


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run folder during the block, so that one process at a time writes it.

    The lock of a process that was killed is free again.
    Raises UserError: another process has locked the folder; its id is named.
    """
    from filelock import FileLock, Timeout

    path = folder / ".lock"
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        process = path.read_text() or "unknown"
        raise UserError(f"{folder} is being trained by process {process}; stop it first") from None

    try:
        path.write_text(str(os.getpid()))
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def find_training_state(path: Path) -> "tuple[TrainingState | None, list[str]]":
    """Read the training state that a run goes on from.

    Args:
        path: a .ckpt file, or a run folder, whose readable checkpoint of the latest step is taken.

    Returns the state, None if nothing was saved yet, and a line about each damaged file that was passed over.
    Raises UserError: the file, or every checkpoint of the folder, is damaged or holds no training state.
    """
    from gptmini.model.checkpoint import read_checkpoint, step_of
    from gptmini.model.training_state import TrainingState

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
    """
    from gptmini.model.checkpoint import step_of

    aside = []
    for name in CHECKPOINTS:
        other = path.with_name(f"{name}.ckpt")
        if not other.is_file() or other.samefile(path):
            continue
        other_step = step_of(other)
        if other_step > step:
            aside.append(other.replace(other.with_name(f"set-aside-{name}-{other_step}.ckpt")))

    # The temporary files were left by a process that was killed while it wrote.
    for left_over in path.parent.glob(".*.tmp"):
        left_over.unlink()

    last = path.with_name("last.ckpt")
    if not last.exists() or not last.samefile(path):
        replace_by_link(path, last)
    return aside


def _check_latest(latest: Path) -> None:
    """Raise UserError unless latest is absent, or a folder whose items of a run are links."""
    is_link_or_file = latest.is_symlink() or (latest.exists() and not latest.is_dir())
    if is_link_or_file or any(_is_plain(latest / item) for item in LINKED):
        raise UserError(
            f"{latest} must be absent or a folder of links that an earlier run made; move it away"
        )


def _is_plain(path: Path) -> bool:
    """Whether path is a file or folder itself, and not a link."""
    return path.exists() and not path.is_symlink()
