"""The folder of a run, runs/<name>/<time>/: create it, write its config.yaml, lock it and link it as runs/latest."""

import datetime
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml
from filelock import FileLock, Timeout

from gptmini.runs.status import STATUS
from gptmini.system.errors import TryLater, UserError
from gptmini.system.files import naming, replace_by_symlink, replacing
from gptmini.system.untrusted import is_run_config, read_yaml
from gptmini.system.version import __version__

STAMP = "%Y-%m-%d_%H-%M-%S"  # the time in the name of a run's folder
# The oldest major and minor version of gptmini that wrote runs which this version can resume. The files of older runs
# name modules that have moved since then. They also store optimizer state by number instead of by name.
OLDEST_RESUMABLE = (0, 3)
# The lines of a config.yaml that identify the run. Only the first HEAD bytes of the file are searched for these lines.
IDENTITY = re.compile(r"^(begun|id): '?([\w.-]+)'?$", re.MULTILINE)
HEAD = 1024
LONGEST_NAME = 100  # characters of a run's name in its id; Weights & Biases allows ids of 128
LINKED = ("config.yaml", "train.log", "checkpoints")  # items that runs/latest links to
# Seconds that a process waits for the lock of a run. `gptmini runs` holds this lock for an instant.
PATIENCE = 0.5


class Identity(NamedTuple):
    """The start time and the unique id of a run.

    They stay the same if the folder is renamed or moved, and if the run is resumed.
    """

    begun: str  # local time as in the name of a run's folder, with microseconds added
    id: str  # letters of any alphabet, digits, and the characters _ . -


def is_run(folder: Path) -> bool:
    """Whether a folder is the folder of a run. Its config.yaml shows that."""
    return is_run_config(folder / "config.yaml")


def make_run_folder(runs_dir: str, name: str | None, folder: str | None) -> tuple[Path, list[Path]]:
    """Make the folder of a new run. Return it, and the folders that did not exist before, innermost first.

    Without `folder`, it is runs_dir/name/<time>, or <time>_2 and so on if this folder exists. Raises UserError if
    `folder` is not empty, or is inside a run.
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
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _check_free(folder: Path) -> None:
    for around in folder.absolute().parents:
        if is_run(around):
            raise UserError(
                f"folder={folder} must not be inside a run, but it is inside {around}; choose another folder"
            )

    # A process that was killed before its run started may leave a lock file and an incomplete config.yaml. A sweep
    # writes the file 'state' of such a process.
    names = {item.name for item in folder.iterdir()} if folder.is_dir() else set()
    leftovers = {name for name in names if name.startswith(".config.yaml.")} | {".lock", STATUS}
    others = names - leftovers
    if others:
        raise UserError(
            f"folder={folder} must be a run folder, an empty folder or a new folder, but it contains {min(others)}"
        )


def identity_of(folder: Path) -> Identity:
    """Return the identity of the run in a folder, or a new identity for a folder without a run.

    Runs of earlier versions and imported models do not store an identity. Their id is the name of the folder, and their
    start time is the modification time of config.yaml, which every start of the run writes.
    """
    if not is_run(folder):
        place = folder.absolute()
        now = datetime.datetime.now().strftime(f"{STAMP}.%f")
        return Identity(begun=now, id=f"{_plain(place)[:LONGEST_NAME]}-{secrets.token_hex(4)}")

    with (folder / "config.yaml").open("rb") as file:
        head = file.read(HEAD).decode("utf-8", errors="replace")
    lines = dict(IDENTITY.findall(head))
    written = datetime.datetime.fromtimestamp((folder / "config.yaml").stat().st_mtime)
    return Identity(
        begun=lines.get("begun", written.strftime(STAMP)),
        id=lines.get("id", _plain(folder)),
    )


def _plain(folder: Path) -> str:
    return re.sub(r"[^\w.-]", "-", f"{folder.parent.name}-{folder.name}")


def write_config(
    config: str, folder: Path, overrides: Sequence[str], identity: Identity | None = None
) -> None:
    """Write config.yaml into a run folder: the configuration in YAML below the overrides of all starts of the run.

    An imported model has no identity, because it is not trained.
    """
    # Write the identity before the overrides, so that the identity is in the first kilobyte of the file.
    fields = {} if identity is None else identity._asdict()
    head = {"version": __version__, **fields, "typed": list(overrides)}
    text = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=10_000)
    with replacing(folder / "config.yaml") as file:
        file.write(f"{text}{config}".encode())


def read_config(folder: Path, *, to_go_on: bool = False) -> tuple[dict, list[str]]:
    """Return the configuration and the overrides that a run's config.yaml contains.

    Raises UserError if the file is damaged or, with to_go_on, if this version of gptmini cannot resume the run.
    """
    tree = read_yaml(folder / "config.yaml")
    version = tree.pop("version", None)
    for name in Identity._fields:
        tree.pop(name, None)
    if to_go_on:
        check_version(version, folder)
    typed = tree.pop("typed", [])
    if not isinstance(typed, list) or any(type(line) is not str for line in typed):
        raise UserError(f"{folder / 'config.yaml'}: the field 'typed' must be a list of overrides")
    return tree, typed


def check_version(version: object, folder: Path) -> None:
    """Raise UserError unless this version of gptmini can resume a run that another version wrote."""
    # Only version 0.1.0 did not write its version into a run.
    written_by = "0.1.0" if version is None else str(version)
    if not OLDEST_RESUMABLE <= _major_and_minor(written_by) <= _major_and_minor(__version__):
        raise UserError(
            f"gptmini {__version__} cannot resume {folder}, a run of gptmini {written_by}; "
            f"install gptmini {written_by}, or start a new run"
        )


def _major_and_minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def is_training(folder: Path) -> bool:
    """Whether a process is training a run now."""
    path = folder / ".lock"
    if not path.exists():
        return False
    try:
        with FileLock(path).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # this user may not write to the lock file of another user's run
        return False


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run folder during the block, so that only one process at a time writes to it.

    The system releases the lock of a killed process. Raises TryLater with the process id if another process has locked
    it.
    """
    path = folder / ".lock"
    lock = FileLock(path)
    try:
        with naming(path):
            lock.acquire(timeout=PATIENCE)
    except Timeout:
        process = path.read_text() or "unknown"
        raise TryLater(
            f"process {process} is training the run {folder}; stop this process first"
        ) from None
    except OSError:  # some network file systems have no locks
        path.unlink(missing_ok=True)
        raise

    try:
        with naming(path):
            path.write_text(str(os.getpid()))
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def link_latest(root: Path, folder: Path) -> None:
    """Make root/latest a folder of links to the files of a run.

    Event files are not linked, because TensorBoard follows links and would list the run twice. Raises UserError if
    root/latest exists but an earlier run did not make it.
    """
    latest = root / "latest"
    check_latest(latest)
    latest.mkdir(parents=True, exist_ok=True)
    for item in LINKED:
        destination = os.path.relpath((folder / item).absolute(), latest.absolute())
        replace_by_symlink(destination, latest / item)


def check_latest(latest: Path) -> None:
    """Raise UserError unless `latest` is absent or a folder of links. It may contain other files."""
    is_link_or_file = latest.is_symlink() or (latest.exists() and not latest.is_dir())
    items = [latest / item for item in LINKED]
    if is_link_or_file or any(item.exists() and not item.is_symlink() for item in items):
        raise UserError(
            f"{latest} must be absent, or a folder of links from an earlier run; move it away"
        )


def root_of(folder: Path, runs_dir: str) -> Path | None:
    """Return the folder of all runs that contains a run: runs_dir, or a parent folder with `latest`. Or return None."""
    root = Path(runs_dir).expanduser()
    folder = folder.absolute()
    if folder.is_relative_to(root.absolute()):
        return relative_to_cwd(root)
    for around in (folder.parent, folder.parent.parent):
        if (around / "latest" / "config.yaml").is_symlink():
            return relative_to_cwd(around)
    return None


def relative_to_cwd(path: Path) -> Path:
    """Return a path relative to the working directory if it is inside. Otherwise return the absolute path."""
    here = Path.cwd()
    path = path.absolute()
    return path.relative_to(here) if path.is_relative_to(here) else path
