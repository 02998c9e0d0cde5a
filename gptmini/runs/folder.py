"""The folder of a run, runs/<name>/<time>/: made, described by its config.yaml, and locked."""

import datetime
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gptmini import __version__
from gptmini.files import naming, replacing
from gptmini.untrusted import read_yaml
from gptmini.user_error import UserError

STAMP = "%Y-%m-%d_%H-%M-%S"  # the time in the name of a run's folder
FIRST_VERSION = "0.1.0"  # the only version of gptmini that did not write its version into a run
# First major and minor version whose runs can be resumed. Older runs name modules that have moved since, and store the
# optimizer's state by number instead of by name.
OLDEST_RESUMABLE = (0, 3)
VERSION = b"version: "  # what the config.yaml of a run begins with
# Seconds that a process waits for the lock of a run, which a table of runs holds for an instant.
PATIENCE = 0.5


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run: its config.yaml begins with the version of gptmini that wrote it."""
    path = folder / "config.yaml"
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(VERSION)) == VERSION


def make_run_folder(runs_dir: str, name: str | None, folder: str | None) -> tuple[Path, list[Path]]:
    """Make the folder of a new run.

    Args:
        runs_dir: folder of all runs.
        name: the run's name; unused with a folder.
        folder: the folder itself, which may exist and hold nothing; None for runs_dir/name/<time>, or <time>_2 and so
            on where another run has that name.

    Returns the folder, and the folders that did not exist before, the innermost first.
    Raises UserError: the folder holds something else than a run, or lies inside of one.
    """
    if folder is not None:
        place = Path(folder).expanduser()
        _check_free(place)
        made = _missing(place)
        place.mkdir(parents=True, exist_ok=True)
        return place, made

    stamp = datetime.datetime.now().strftime(STAMP)
    place = Path(runs_dir).expanduser() / str(name) / stamp
    made = _missing(place.parent)
    place.parent.mkdir(parents=True, exist_ok=True)
    attempt = 1
    while True:
        try:
            place.mkdir()
        except FileExistsError:
            attempt += 1
            place = place.with_name(f"{stamp}_{attempt}")
        else:
            return place, [place, *made]


def _missing(folder: Path) -> list[Path]:
    """A folder and the folders around it, the innermost first, as far as they do not exist."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _check_free(folder: Path) -> None:
    """Raise UserError unless a new run can have a folder: it is empty or absent, and lies inside of no run."""
    for around in folder.absolute().parents:
        if is_run(around):
            raise UserError(
                f"folder={folder} lies in the run {around}; a run has a folder of its own"
            )

    # A process that was killed before its run began has left its lock, and nothing else.
    held = {item.name for item in folder.iterdir()} if folder.is_dir() else set()
    if held - {".lock"}:
        raise UserError(
            f"folder={folder} must be a run, or empty or absent, and it holds {min(held - {'.lock'})}"
        )


def write_config(config: str, folder: Path, overrides: Sequence[str]) -> None:
    """Write config.yaml into a run folder.

    Args:
        config: the configuration in YAML, without interpolations.
        folder: of the run.
        overrides: what was typed for the run in all its starts, KEY=VALUE each.
    """
    import yaml

    head = {"version": __version__, "typed": list(overrides)}
    text = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=10_000)
    with replacing(folder / "config.yaml") as file:
        file.write(f"{text}{config}".encode())


def read_config(folder: Path, *, to_go_on: bool = False) -> tuple[dict, list[str]]:
    """Read the configuration of a run, and what was typed for it, from its config.yaml.

    Raises UserError: the file is damaged, or where the run is to go on, of a version whose runs this one does
    not go on with.
    """
    tree = read_yaml(folder / "config.yaml")
    version = tree.pop("version", None)
    if to_go_on:
        check_version(version, folder)
    typed = tree.pop("typed", [])
    if not isinstance(typed, list) or any(type(line) is not str for line in typed):
        raise UserError(f"{folder / 'config.yaml'} must list what was typed for the run")
    return tree, typed


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


def is_trained(folder: Path) -> bool:
    """Whether a process trains a run now."""
    from filelock import FileLock, Timeout

    path = folder / ".lock"
    if not path.exists():
        return False
    try:
        with FileLock(path).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a run of somebody else, who has not allowed to write there
        return False


@contextmanager
def locked(folder: Path, doing: str = "trained") -> Iterator[None]:
    """Lock a run folder during the block, so that one process at a time writes it.

    The lock of a process that was killed is free again.

    Args:
        folder: of a run, or of a sweep.
        doing: what the other process does with it, for the error message.

    Raises UserError: another process has locked the folder; its id is named.
    """
    from filelock import FileLock, Timeout

    path = folder / ".lock"
    lock = FileLock(path)
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        process = path.read_text() or "unknown"
        raise UserError(f"{folder} is being {doing} by process {process}; stop it first") from None

    try:
        with naming(path):
            path.write_text(str(os.getpid()))
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()
