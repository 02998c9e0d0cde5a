"""nanoGPT as a peer: a copy of a checkout, with tokens for it and the command that trains it."""

import pickle
import re
import shutil
import statistics
import sys
from pathlib import Path

import numpy as np

from gptmini.user_error import UserError

FILES = ("train.py", "model.py", "configurator.py")  # what nanoGPT's train.py needs

# What nanoGPT's README types for a CPU, after config/train_shakespeare_char.py: its recipe for a laptop.
LAPTOP = {
    "dataset": "tokens",
    "device": "cpu",
    "compile": False,
    "eval_iters": 20,
    "log_interval": 1,
    "block_size": 64,
    "batch_size": 12,
    "gradient_accumulation_steps": 1,
    "n_layer": 4,
    "n_head": 4,
    "n_embd": 128,
    "dropout": 0.0,
    "bias": False,
    "learning_rate": 1e-3,
    "min_lr": 1e-4,
    "beta2": 0.99,
    "warmup_iters": 100,
    "max_iters": 2000,
    "lr_decay_iters": 2000,
    "eval_interval": 250,
    "always_save_checkpoint": False,
}


def check_checkout(checkout: Path | None) -> None:
    """Raise UserError for a folder that is no checkout of nanoGPT; None is no folder."""
    if checkout is not None and not (checkout / "train.py").is_file():
        raise UserError(
            f"--nanogpt must be a checkout of nanoGPT with its train.py, got {checkout}"
        )


def copy_with_tokens(checkout: Path, folder: Path, train: np.ndarray, val: np.ndarray) -> None:
    """Copy nanoGPT into a folder, so that a run does not write into the checkout, with tokens (n,) of both splits."""
    data = folder / "data" / "tokens"
    data.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(checkout / name, folder / name)
    for split, ids in (("train", train), ("val", val)):
        np.asarray(ids, dtype=np.uint16).tofile(data / f"{split}.bin")


def write_vocabulary(folder: Path, n_vocab: int) -> None:
    """Tell nanoGPT the number of ids, which is otherwise GPT-2's."""
    path = folder / "data" / "tokens" / "meta.pkl"
    path.write_bytes(pickle.dumps({"vocab_size": n_vocab}))


def command(options: dict) -> list[str]:
    """The command that trains, typed in the copy's folder; options are variables of nanoGPT's train.py."""
    return [sys.executable, "train.py", *(f"--{name}={value}" for name, value in options.items())]


def median_milliseconds(output: str, first_step: int) -> float:
    """The median milliseconds of a step that train.py printed, from a step on."""
    found = re.findall(r"^iter \d+: .* time ([\d.]+)ms", output, flags=re.MULTILINE)
    return statistics.median(map(float, found[first_step:]))
