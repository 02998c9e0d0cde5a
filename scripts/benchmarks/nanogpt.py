"""Run nanoGPT for comparison: copy a checkout, write its tokens, and build its training command."""

import argparse
import pickle
import re
import shutil
import statistics
import sys
from pathlib import Path

import numpy as np

FILES = ("train.py", "model.py", "configurator.py")  # files that nanoGPT's train.py needs
NEVER = 10**6  # as eval_interval: nanoGPT then evaluates only at its first step

# The options that nanoGPT's README gives for a CPU, on top of config/train_shakespeare_char.py: its laptop recipe.
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
    """Add the option for a checkout of nanoGPT."""
    note = "checkout of nanoGPT to compare with"
    parser.add_argument("--nanogpt", type=checkout, metavar="FOLDER", help=note)


def checkout(text: str) -> Path:
    """Parse the path of a checkout of nanoGPT, for argparse."""
    folder = Path(text)
    if not (folder / "train.py").is_file():
        raise argparse.ArgumentTypeError(
            f"must be a checkout of nanoGPT with train.py, got {folder}"
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
    """Copy a checkout and write its tokens, so that a run does not write into the checkout.

    Args:
        source: the checkout.
        folder: destination.
        train: training ids, (n,).
        val: held-out ids, (n,).
        n_vocab: vocabulary size; None for GPT-2's.
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
    """Return the training command, to run in the folder of the copy; options are variables of nanoGPT's train.py."""
    flags = {"dataset": "tokens", **options}
    return [sys.executable, "train.py", *(f"--{name}={value}" for name, value in flags.items())]


def sizes_of(model: object) -> dict[str, int]:
    """Return the sizes of a gptmini model configuration under nanoGPT's names."""
    return {
        "block_size": model.context_length,
        "n_layer": model.n_layers,
        "n_head": model.n_heads,
        "n_embd": model.d_model,
    }


def median_milliseconds(output: str, first_step: int) -> float:
    """Return the median milliseconds per step in the output of train.py, starting at first_step."""
    found = re.findall(r"^iter \d+: .* time ([\d.]+)ms", output, flags=re.MULTILINE)
    return statistics.median(map(float, found[first_step:]))
