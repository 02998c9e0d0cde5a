"""The folder of a run: runs/<name>/<time>/, which one process writes at a time, and runs/latest that leads to it.

Which of its checkpoints a resumed run goes on from, and what becomes of the others, is decided here too.
"""

import datetime
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAMES = ("last", "previous", "best")
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


def checkpoint_to_resume(path: Path) -> tuple[Path | None, dict | None, list[str]]:
    """Find where a run goes on: at the given file, or the readable checkpoint of the latest step in a run folder.

    Returns its path and contents, or None twice if nothing was saved yet, and a line on each damaged file passed over.
    Raises ValueError: the file, or every checkpoint of the folder, is damaged or holds no training state.
    """
    from gptmini.model.checkpoint import read_checkpoint  # torch takes seconds, and a report needs none

    files, damaged = [path], []
    if path.is_dir():
        named = [path / "checkpoints" / f"{name}.ckpt" for name in NAMES]
        files = sorted(filter(Path.is_file, named), key=_step_of, reverse=True)  # the damaged first, to be named
    for file in files:
        try:
            checkpoint = read_checkpoint(file)
            _check_training_state(checkpoint, file)
            return file, checkpoint, damaged
        except ValueError as error:
            damaged.append(str(error))
    if damaged:
        raise ValueError(f"no checkpoint to resume from: {'; '.join(damaged)}")
    return None, None, []


def adopt(path: Path, step: int) -> list[Path]:
    """Let a run go on from one of its checkpoints: it becomes last.ckpt, and what is later or damaged is set aside.

    Returns the files set aside, under their new names, set-aside-<name>-<step>.ckpt, or inf for a damaged one.
    """
    from gptmini.model.checkpoint import replace_by_link

    aside = []
    for name in NAMES:
        other = path.with_name(f"{name}.ckpt")
        if other.is_file() and not other.samefile(path) and (other_step := _step_of(other)) > step:
            aside.append(other.replace(other.with_name(f"set-aside-{name}-{other_step}.ckpt")))
    for left in path.parent.glob(".*.tmp"):  # by a process that was killed while it wrote
        left.unlink()
    if not (last := path.with_name("last.ckpt")).exists() or not last.samefile(path):
        replace_by_link(path, last)
    return aside


def _step_of(path: Path) -> float:
    """Step that a file is of, its checksums right but its tensors not read; infinite if it is damaged."""
    import torch

    from gptmini.model.checkpoint import check_archive

    try:
        check_archive(path)
        step = torch.load(path, map_location="cpu", mmap=True, weights_only=True)["global_step"]
        return step if type(step) is int and step >= 0 else math.inf
    except Exception:  # of whatever class: read_checkpoint will say how it is damaged
        return math.inf


def _check_training_state(checkpoint: dict, path: Path) -> None:
    """Raise ValueError unless a checkpoint holds what a run goes on from, and not the model alone."""
    from gptmini.model.checkpoint import is_dense

    try:
        own, (optimizer,) = checkpoint["gptmini"], checkpoint["optimizer_states"]
        done, n_bad, *counts = (checkpoint["global_step"], *own["bad_steps"], own["max_steps"], own["validated_step"])
        tensors = [tensor for state in optimizer["state"].values() for tensor in state.values()]
        fits = (
            all(type(count) is int and count >= 0 for count in (done, n_bad, *counts))
            and len(own["bad_steps"]) == 2
            and all(is_dense(tensor) for tensor in tensors)
            and (bool(tensors) or done == n_bad)
            and all(state["step"] == done - n_bad for state in optimizer["state"].values())
            and all(type(own["data"][key]) is str for key in ("folder", "fingerprint"))
        )
    except Exception:  # of whatever class: a stranger wrote it
        fits = False
    if not fits:
        raise ValueError(f"{path} holds no training state that this version can go on from")
