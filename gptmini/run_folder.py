"""The folder of a run: runs/<name>/<time>/, which one process writes at a time, and runs/latest that leads to it.

Which of its checkpoints a resumed run goes on from, and what becomes of the others, is decided here too.
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

if TYPE_CHECKING:  # torch takes seconds, and whoever only looks for a run needs none
    from gptmini.model.checkpoint import TrainingState

CHECKPOINTS = ("last", "previous", "best")
LINKED = ("config.yaml", "train.log", "checkpoints")  # what a person or a script opens
FIRST_VERSION = "0.1.0"  # of gptmini, which did not yet write its version into a run
OLDEST_RESUMABLE = (0, 2)  # earlier runs name modules that have moved since, and number the optimizer's state
FORBIDDEN = set('/\\:*?"<>|')  # characters that some file system keeps for itself


def check_run_name(name: str) -> None:
    """Raise UserError unless a run may be called so: a plain folder name."""
    is_plain = type(name) is str and name.isprintable() and not set(name) & FORBIDDEN
    if not is_plain or name in ("", ".", "..", "latest"):
        raise UserError(f"name must be a plain folder name other than latest, got name={name!r}")


def new_run_folder(root: str | Path, name: str, config: str) -> Path:
    """Make root/name/<time>, which nothing else has, with its config.yaml, and let root/latest lead to it.

    Raises UserError: root/latest is not ours, as for link_latest.
    """
    _check_latest(Path(root) / "latest")
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = Path(root) / name / stamp
    attempt = 1
    while True:
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:  # another run began in this second
            attempt += 1
            folder = folder.with_name(f"{stamp}_{attempt}")

    write_config(config, folder)  # first, so that latest never leads to what cannot be resumed
    link_latest(root, folder)
    return folder


def write_config(config: str, folder: Path) -> None:
    """Keep a configuration, in YAML, in the run folder, under the version of gptmini that writes it."""
    text = f"version: {__version__} # of gptmini, which wrote this run\n{config}"
    with replacing(folder / "config.yaml") as file:
        file.write(text.encode("utf-8"))


def read_config(folder: Path) -> str:
    """Text of a run's configuration; UserError for one with aliases, a few of which could stand for terabytes."""
    import yaml

    path = folder / "config.yaml"
    text = path.read_text(encoding="utf-8")
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
        raise UserError(f"{path} must hold plain values, got aliases")
    return text


def check_version(version: object, folder: Path) -> None:
    """Raise UserError unless this version of gptmini can go on with a run that the given version wrote.

    version is what config.yaml says, None if it says nothing.
    """
    written_by = FIRST_VERSION if version is None else version
    numbers = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})\.[0-9]{1,4}", str(written_by))
    if numbers is None:
        raise UserError(f"{folder / 'config.yaml'} must name the version of gptmini that wrote it, got {version!r}")

    own = tuple(map(int, __version__.split(".")[:2]))
    theirs = (int(numbers[1]), int(numbers[2]))
    if not OLDEST_RESUMABLE <= theirs <= own:
        raise UserError(
            f"{folder} was begun by gptmini {written_by}, which {__version__} cannot go on with; "
            f"install gptmini {written_by}, or begin a new run"
        )


def link_latest(root: str | Path, folder: Path) -> None:
    """Let root/latest lead to a run; UserError if it is something else than ours, which is left as it is.

    It is a folder of links, and has none to the events: TensorBoard follows links, and would list the run twice.
    """
    latest = Path(root) / "latest"
    _check_latest(latest)
    latest.mkdir(parents=True, exist_ok=True)
    for item in LINKED:
        destination = os.path.relpath((folder / item).absolute(), latest.absolute())
        replace_by_symlink(destination, latest / item)


def find_run(path: str | Path) -> Path:
    """The run folder that a path means: itself, root/latest, or that of a .ckpt file; UserError if there is none."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path} does not exist; give a run folder (runs/latest) or a .ckpt file in one")

    folder = path.resolve().parent.parent if path.is_file() else (path / "config.yaml").resolve().parent
    if not (folder / "config.yaml").is_file():
        runs = sorted(found.parent for found in path.glob("*/config.yaml")) if path.is_dir() else []
        hint = f"; did you mean {runs[-1]}?" if runs else "; a run keeps it beside its checkpoints folder"
        raise UserError(f"{path} belongs to no run: {folder / 'config.yaml'} is missing{hint}")

    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out, until this one ends, however; UserError names the one that is in."""
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
    """Find where a run goes on: at the given file, or the readable checkpoint of the latest step in a run folder.

    Returns None if nothing was saved yet, and a line on each damaged file that was passed over.
    Raises UserError: the file, or every checkpoint of the folder, is damaged or holds no training state.
    """
    from gptmini.model.checkpoint import TrainingState, read_checkpoint, step_of

    files = [path]
    if path.is_dir():
        named = [path / "checkpoints" / f"{name}.ckpt" for name in CHECKPOINTS]
        files = sorted(filter(Path.is_file, named), key=step_of, reverse=True)  # the damaged first, to be named

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
    """Let a run go on from one of its checkpoints: it becomes last.ckpt, and what is later or damaged is set aside.

    Returns the files set aside, under their new names, set-aside-<name>-<step>.ckpt, or inf for a damaged one.
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

    for left in path.parent.glob(".*.tmp"):  # by a process that was killed while it wrote
        left.unlink()

    last = path.with_name("last.ckpt")
    if not last.exists() or not last.samefile(path):
        replace_by_link(path, last)
    return aside


def _check_latest(latest: Path) -> None:
    files = [latest / item for item in LINKED if (latest / item).exists() and not (latest / item).is_symlink()]
    if latest.is_symlink() or files or (latest.exists() and not latest.is_dir()):
        raise UserError(f"{latest} must be absent or a folder of links that an earlier run made; move it away")
