"""Which checkpoint a resumed run goes on from, and what becomes of the others."""

import math
from pathlib import Path

import torch

from gptmini.model.checkpoint import check_archive, is_dense, read_checkpoint, replace_by_link

NAMES = ("last", "previous", "best")


def checkpoint_to_resume(path: Path) -> tuple[Path | None, dict | None, list[str]]:
    """Find where a run goes on: at the given file, or the readable checkpoint of the latest step in a run folder.

    Returns its path and contents, or None twice if nothing was saved yet, and a line on each damaged file passed over.
    Raises ValueError: the file, or every checkpoint of the folder, is damaged or holds no training state.
    """
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
    try:
        check_archive(path)
        step = torch.load(path, map_location="cpu", mmap=True, weights_only=True)["global_step"]
        return step if type(step) is int and step >= 0 else math.inf
    except Exception:  # of whatever class: read_checkpoint will say how it is damaged
        return math.inf


def _check_training_state(checkpoint: dict, path: Path) -> None:
    """Raise ValueError unless a checkpoint holds what a run goes on from, and not the model alone."""
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
