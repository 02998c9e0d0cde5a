"""The folder of a run, runs/<name>/<time>/: made, described by its config.yaml, locked, and led to by runs/latest."""

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
# First major and minor version whose runs can be resumed. Older runs name modules that have moved since, and store the
# optimizer's state by number instead of by name.
OLDEST_RESUMABLE = (0, 3)
VERSION = b"version: "  # what the config.yaml of a run begins with
# Lines in the head of a config.yaml that say which run it is, and the bytes in which they are looked for.
IDENTITY = re.compile(r"^(begun|id): '?([\w.-]+)'?$", re.MULTILINE)
HEAD = 1024
LONGEST_NAME = 100  # characters of a run's name in its id: Weights & Biases takes 128 in all
LINKED = ("config.yaml", "train.log", "checkpoints")  # items that runs/latest links to
# Seconds that a process waits for the lock of a run, which a table of runs holds for an instant.
PATIENCE = 0.5


class Identity(NamedTuple):
    """When a run began, and an id that no other run has. Both stay when its folder is renamed, moved or resumed."""

    begun: str  # local time, as in the name of a run's folder, and microseconds
    id: str  # letters of any alphabet, digits, and the characters _ . -


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

    # A process that was killed before its run began has left its lock, and perhaps a part of its config.yaml.
    held = {item.name for item in folder.iterdir()} if folder.is_dir() else set()
    others = {name for name in held if name != ".lock" and not name.startswith(".config.yaml.")}
    if others:
        raise UserError(
            f"folder={folder} must be a run, or empty or absent, and it holds {min(others)}"
        )


def identity_of(folder: Path) -> Identity:
    """The identity of the run in a folder, or a new one for a folder without a run.

    A run of an earlier version keeps none: its id is the name of its folder, and its configuration was written when it
    began or last went on.
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
    """The names of a run's folder and of the folder around it, in characters that an id may have."""
    return re.sub(r"[^\w.-]", "-", f"{folder.parent.name}-{folder.name}")


def _kept_identity(folder: Path) -> dict[str, str]:
    """What the head of a run's config.yaml says of its identity."""
    with (folder / "config.yaml").open("rb") as file:
        head = file.read(HEAD).decode("utf-8", errors="replace")
    return dict(IDENTITY.findall(head))


def write_config(
    config: str, folder: Path, overrides: Sequence[str], identity: Identity | None = None
) -> None:
    """Write config.yaml into a run folder.

    Args:
        config: the configuration in YAML, without interpolations.
        folder: of the run.
        overrides: what was typed for the run in all its starts, KEY=VALUE each.
        identity: of the run; None for one that never trains.
    """
    import yaml

    # The identity stands before the overrides, so that the first kilobyte has it.
    known = {} if identity is None else identity._asdict()
    head = {"version": __version__, **known, "typed": list(overrides)}
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
    for name in Identity._fields:
        tree.pop(name, None)
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
    # Version 0.1.0 alone did not write its version into a run.
    written_by = "0.1.0" if version is None else str(version)
    if not OLDEST_RESUMABLE <= _major_and_minor(written_by) <= _major_and_minor(__version__):
        raise UserError(
            f"{folder} was begun by gptmini {written_by}, which {__version__} cannot go on with; "
            f"install gptmini {written_by}, or begin a new run"
        )


def _major_and_minor(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, as the last never decides whether a run goes on; fewer for other words."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


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
def locked(folder: Path) -> Iterator[None]:
    """Lock a run folder during the block, so that one process at a time writes it.

    The lock of a process that was killed is free again.

    Raises UserError: another process has locked the folder; its id is named.
    """
    from filelock import FileLock, Timeout

    path = folder / ".lock"
    lock = FileLock(path)
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        process = path.read_text() or "unknown"
        raise UserError(f"{folder} is being trained by process {process}; stop it first") from None

    try:
        with naming(path):
            path.write_text(str(os.getpid()))
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


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
