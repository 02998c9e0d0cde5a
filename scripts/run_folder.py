"""The folder of a run: runs/<name>/<time>/, which one process writes at a time, and runs/latest that leads to it."""

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LINKED = ("config.yaml", "train.log", "checkpoints")  # what a person or a script opens


def check_run_name(name: str) -> None:
    """Raise ValueError unless a run may be called so: a plain folder name."""
    if (
        type(name) is not str
        or name in ("", ".", "..", "latest")
        or not name.isprintable()
        or set(name) & set('/\\:*?"<>|')
    ):
        raise ValueError(f"name must be a plain folder name other than latest, got name={name!r}")


def new_run_folder(root: str | Path, name: str, config: str) -> Path:
    """Make root/name/<time>, which nothing else has, with its config.yaml, and let root/latest lead to it.

    Raises ValueError: root/latest is not ours, as for link_latest.
    """
    _check_latest(Path(root) / "latest")
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder, attempt = Path(root) / name / stamp, 1
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
    """Keep a configuration in the run folder, for whoever resumes it."""
    temporary = folder / f".config.yaml.{os.getpid()}.tmp"
    temporary.write_text(config, encoding="utf-8")
    temporary.replace(folder / "config.yaml")


def read_config(folder: Path) -> str:
    """Text of a run's configuration; ValueError for one with aliases, a few of which could stand for terabytes."""
    import yaml

    text = (folder / "config.yaml").read_text(encoding="utf-8")
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
        raise ValueError(f"{folder / 'config.yaml'} must hold plain values, got aliases")
    return text


def link_latest(root: str | Path, folder: Path) -> None:
    """Let root/latest lead to a run; ValueError if it is something else than ours, which is left as it is.

    It is a folder of links, and has none to the events: TensorBoard follows links, and would list the run twice.
    """
    latest = Path(root) / "latest"
    _check_latest(latest)
    latest.mkdir(parents=True, exist_ok=True)
    for item in LINKED:
        temporary = latest / f".{item}.{os.getpid()}"
        temporary.symlink_to(os.path.relpath((folder / item).absolute(), latest.absolute()))
        temporary.replace(latest / item)


def find_run(path: str | Path) -> Path:
    """The run folder that a path means: itself, root/latest, or that of a .ckpt file; ValueError if there is none."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"{path} does not exist; give a run folder (runs/latest) or a .ckpt file in one")
    folder = path.resolve().parent.parent if path.is_file() else (path / "config.yaml").resolve().parent
    if not (folder / "config.yaml").is_file():
        runs = sorted(found.parent for found in path.glob("*/config.yaml")) if path.is_dir() else []
        hint = f"; did you mean {runs[-1]}?" if runs else "; a run keeps it beside its checkpoints folder"
        raise ValueError(f"{path} belongs to no run: {folder / 'config.yaml'} is missing{hint}")
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out, until this one ends, however; ValueError names the one that is in."""
    from filelock import FileLock, Timeout

    path = folder / ".lock"
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"{folder} is being trained by process {path.read_text() or 'unknown'}; stop it first"
        ) from None
    try:
        path.write_text(str(os.getpid()))
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def _check_latest(latest: Path) -> None:
    kept = [latest / item for item in LINKED if (latest / item).exists() and not (latest / item).is_symlink()]
    if latest.is_symlink() or kept or (latest.exists() and not latest.is_dir()):
        raise ValueError(f"{latest} must be absent or a folder of links that an earlier run made; move it away")
