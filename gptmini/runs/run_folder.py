"""The folder of a run, runs/<name>/<time>/: create it, write its config.yaml, lock it and link it as runs/latest."""

import datetime
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gptmini.files import naming, replace_by_symlink, replacing
from gptmini.untrusted import read_yaml
from gptmini.user_error import UserError
from gptmini.version import __version__

STAMP = "%Y-%m-%d_%H-%M-%S"  # the time in the name of a run's folder
# Oldest major and minor version whose runs can be resumed. Older runs name modules that have moved since, and store
# optimizer state by number instead of by name.
OLDEST_RESUMABLE = (0, 3)
VERSION = b"version: "  # the first bytes of a run's config.yaml
# The lines of a config.yaml that identify the run, and the number of bytes that are searched for them.
IDENTITY = re.compile(r"^(begun|id): '?([\w.-]+)'?$", re.MULTILINE)
HEAD = 1024
LONGEST_NAME = 100  # characters of a run's name in its id; Weights & Biases allows ids of 128
LINKED = ("config.yaml", "train.log", "checkpoints")  # items that runs/latest links to
# Seconds that a process waits for a run's lock. `gptmini runs` holds it for an instant.
PATIENCE = 0.5


class Identity(NamedTuple):
    """The start time of a run and its unique id. Both stay the same when the folder is renamed, moved or resumed."""

    begun: str  # local time as in the name of a run's folder, with microseconds added
    id: str  # letters of any alphabet, digits, and the characters _ . -


def is_run(folder: Path) -> bool:
    """Whether a folder is a run's folder: its config.yaml starts with the version of gptmini that wrote it."""
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
        folder: the folder itself, which may be absent or empty; None for runs_dir/name/<time>, or <time>_2 and so on if
            another run has that name.

    Returns the folder, and the folders that did not exist before, innermost first.
    Raises UserError if the folder is not empty, or is inside a run's folder.
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
    """Return a folder and its parents, innermost first, without the folders that exist."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _check_free(folder: Path) -> None:
    """Raise UserError unless a new run can use a folder: it is empty or absent, and not inside a run's folder."""
    for around in folder.absolute().parents:
        if is_run(around):
            raise UserError(
                f"folder={folder} is inside the run {around}; choose a folder outside it"
            )

    # If a process was killed before its run started, it left its lock and perhaps a partial config.yaml.
    held = {item.name for item in folder.iterdir()} if folder.is_dir() else set()
    others = {name for name in held if name != ".lock" and not name.startswith(".config.yaml.")}
    if others:
        raise UserError(
            f"folder={folder} must be a run folder, an empty folder or a new folder, but it contains {min(others)}"
        )


def identity_of(folder: Path) -> Identity:
    """Return the identity of the run in a folder, or a new identity for a folder without a run.

    A run of an earlier version does not store an identity. Its id is then the name of its folder. Its start time is the
    time at which its configuration was written: at its first start, or at its last resume.
    """
    if not is_run(folder):
        place = folder.absolute()
        now = datetime.datetime.now().strftime(f"{STAMP}.%f")
        return Identity(begun=now, id=f"{_plain(place)[:LONGEST_NAME]}-{secrets.token_hex(4)}")

    kept = _kept_identity(folder)
    written = datetime.datetime.fromtimestamp((folder / "config.yaml").stat().st_mtime)
    return Identity(
        begun=kept.get("begun", written.strftime(STAMP)),
        id=kept.get("id", _plain(folder)),
    )


def _plain(folder: Path) -> str:
    """Return the names of a run's folder and its parent, with characters that an id cannot have replaced by -."""
    return re.sub(r"[^\w.-]", "-", f"{folder.parent.name}-{folder.name}")


def _kept_identity(folder: Path) -> dict[str, str]:
    """Read the identity in the first lines of a run's config.yaml."""
    with (folder / "config.yaml").open("rb") as file:
        head = file.read(HEAD).decode("utf-8", errors="replace")
    return dict(IDENTITY.findall(head))


def write_config(
    config: str, folder: Path, overrides: Sequence[str], identity: Identity | None = None
) -> None:
    """Write config.yaml into a run folder.

    Args:
        config: the configuration in YAML, without interpolations.
        folder: the run's folder.
        overrides: the overrides of all starts of the run, each as KEY=VALUE.
        identity: the run's identity; None for an imported model, which never trains.
    """
    import yaml

    # Write the identity before the overrides, so that it is in the first kilobyte.
    known = {} if identity is None else identity._asdict()
    head = {"version": __version__, **known, "typed": list(overrides)}
    text = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=10_000)
    with replacing(folder / "config.yaml") as file:
        file.write(f"{text}{config}".encode())


def read_config(folder: Path, *, to_go_on: bool = False) -> tuple[dict, list[str]]:
    """Read the configuration and the overrides of a run from its config.yaml.

    Raises UserError if the file is damaged. With to_go_on, also raises it if this version cannot resume the run.
    """
    tree = read_yaml(folder / "config.yaml")
    version = tree.pop("version", None)
    for name in Identity._fields:
        tree.pop(name, None)
    if to_go_on:
        check_version(version, folder)
    typed = tree.pop("typed", [])
    if not isinstance(typed, list) or any(type(line) is not str for line in typed):
        raise UserError(f"{folder / 'config.yaml'}: typed must be a list of overrides")
    return tree, typed


def check_version(version: object, folder: Path) -> None:
    """Raise UserError unless this version of gptmini can resume a run that another version wrote.

    Args:
        version: the version in the run's config.yaml; None if it is missing.
        folder: the run's folder, for the error message.
    """
    # Only version 0.1.0 did not write its version into a run.
    written_by = "0.1.0" if version is None else str(version)
    if not OLDEST_RESUMABLE <= _major_and_minor(written_by) <= _major_and_minor(__version__):
        raise UserError(
            f"gptmini {__version__} cannot resume {folder}, a run of gptmini {written_by}; "
            f"install gptmini {written_by}, or start a new run"
        )


def _major_and_minor(version: str) -> tuple[int, ...]:
    """Return a version's first two numbers, or fewer if it has fewer. They decide whether a run can resume."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def is_training(folder: Path) -> bool:
    """Whether a process is training a run now."""
    from filelock import FileLock, Timeout

    path = folder / ".lock"
    if not path.exists():
        return False
    try:
        with FileLock(path).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # no permission to write in somebody else's run
        return False


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run folder during the block, so that only one process at a time writes to it.

    The system releases the lock of a killed process.

    Raises UserError, with the process id, if another process has locked the folder.
    """
    from filelock import FileLock, Timeout

    path = folder / ".lock"
    lock = FileLock(path)
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        process = path.read_text() or "unknown"
        raise UserError(
            f"{folder} is being trained by process {process}; stop that process first"
        ) from None

    try:
        with naming(path):
            path.write_text(str(os.getpid()))
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def link_latest(root: Path, folder: Path) -> None:
    """Make root/latest a folder of links into a run's folder.

    The event files are not linked, because TensorBoard follows links and would list the run twice.

    Args:
        root: the folder of all runs.
        folder: the run's folder.

    Raises UserError, and changes nothing, if root/latest exists but was not made by an earlier run.
    """
    latest = root / "latest"
    check_latest(latest)
    latest.mkdir(parents=True, exist_ok=True)
    for item in LINKED:
        destination = os.path.relpath((folder / item).absolute(), latest.absolute())
        replace_by_symlink(destination, latest / item)


def check_latest(latest: Path) -> None:
    """Raise UserError unless `latest` is absent, or a folder in which all items named in LINKED are links."""
    is_link_or_file = latest.is_symlink() or (latest.exists() and not latest.is_dir())
    items = [latest / item for item in LINKED]
    if is_link_or_file or any(item.exists() and not item.is_symlink() for item in items):
        raise UserError(
            f"{latest} must be absent, or a folder of links from an earlier run; move it away"
        )


def root_of(folder: Path, runs_dir: str) -> Path | None:
    """Return the folder of all runs that a run belongs to, where `latest` is kept; None if there is no such folder.

    This is runs_dir if it contains the run. Otherwise, it is a parent folder of the run that contains `latest`.
    """
    root = Path(runs_dir).expanduser()
    folder = folder.absolute()
    if folder.is_relative_to(root.absolute()):
        return relative_to_cwd(root)
    for around in (folder.parent, folder.parent.parent):
        if (around / "latest" / "config.yaml").is_symlink():
            return relative_to_cwd(around)
    return None


def relative_to_cwd(path: Path) -> Path:
    """Return a path relative to the working directory if it is inside that directory; otherwise absolute."""
    here = Path.cwd()
    path = path.absolute()
    return path.relative_to(here) if path.is_relative_to(here) else path
