"""nanoGPT as a peer: a copy of a checkout, with tokens for it and the command that trains it."""

import argparse
import pickle
import re
import shutil
import statistics
import sys
from pathlib import Path

import numpy as np

FILES = ("train.py", "model.py", "configurator.py")  # what nanoGPT's train.py needs
NEVER = 10**6  # as eval_interval: nanoGPT evaluates at its first step alone

# What nanoGPT's README types for a CPU, after config/train_shakespeare_char.py: its recipe for a laptop.
LAPTOP = {
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


def add_nanogpt(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a checkout."""
    told = "a checkout of nanoGPT to measure beside"
    parser.add_argument("--nanogpt", type=checkout, metavar="FOLDER", help=told)


def checkout(text: str) -> Path:
    """A checkout of nanoGPT, as a type of argparse."""
    folder = Path(text)
    if not (folder / "train.py").is_file():
        raise argparse.ArgumentTypeError(
            f"must be a checkout of nanoGPT with its train.py, got {folder}"
        )
    return folder.resolve()


def copy(
    source: Path,
    folder: Path,
    *,
    train: np.ndarray,
    val: np.ndarray,
    n_vocab: int | None = None,
) -> None:
    """Copy a checkout into a folder, so that a run does not write into the checkout.

    Args:
        source: the checkout.
        folder: gets the copy and its tokens.
        train: ids of training, (n,).
        val: held-out ids, (n,).
        n_vocab: the number of ids; None for that of GPT-2.
    """
    data = folder / "data" / "tokens"
    data.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(source / name, folder / name)
    for split, ids in (("train", train), ("val", val)):
        np.asarray(ids, dtype=np.uint16).tofile(data / f"{split}.bin")
    if n_vocab is not None:
        (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": n_vocab}))


def command(options: dict) -> list[str]:
    """The command that trains, typed in the copy's folder; options are variables of nanoGPT's train.py."""
    told = {"dataset": "tokens", **options}
    return [sys.executable, "train.py", *(f"--{name}={value}" for name, value in told.items())]


def sizes_of(model: object) -> dict[str, int]:
    """The sizes in the configuration of gptmini's model, by nanoGPT's names."""
    return {
        "block_size": model.context_length,
        "n_layer": model.n_layers,
        "n_head": model.n_heads,
        "n_embd": model.d_model,
    }


def median_milliseconds(output: str, first_step: int) -> float:
    """The median milliseconds of a step that train.py printed, from a step on."""
    found = re.findall(r"^iter \d+: .* time ([\d.]+)ms", output, flags=re.MULTILINE)
    return statistics.median(map(float, found[first_step:]))
