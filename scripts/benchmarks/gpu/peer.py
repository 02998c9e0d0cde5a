"""The peer: nanoGPT's train.py at the sizes of the gpt2 preset and the global batch of a fit, in turns with gptmini."""

import re
import shutil
import statistics
import sys
from functools import partial
from pathlib import Path

from omegaconf import OmegaConf

from .fits import experiment, fit, give_back_memory, synthetic_tokens
from .processes import output_of
from .setting import Setting

FILES = ("train.py", "model.py", "configurator.py")  # what nanoGPT's train.py needs


def measure_peer(setting: Setting) -> None:
    """Add two rows of gptmini and two of nanoGPT, in turns, and the median of their ratios."""
    table = setting.table
    if setting.nanogpt is None:
        table.add("peer", "nanoGPT", "not asked", said="--peer-nanogpt FOLDER names a checkout")
        return

    ratios = []
    for turn in (1, 2):
        ours = table.measure(
            "peer",
            f"ours, turn {turn}",
            partial(fit, setting, "gpt2"),
            expected=setting.expected_seconds,
        )
        theirs = table.measure("peer", f"nanoGPT, turn {turn}", partial(nanogpt, setting, ours))
        if ours and theirs:
            ratios.append(ours["tokens_per_second"] / theirs["tokens_per_second"])

    if ratios:
        table.add("peer", "ours to nanoGPT", "measured", times=statistics.median(ratios))


def nanogpt(setting: Setting, ours: dict | None) -> dict:
    """Train nanoGPT on the same tokens, and return the median speed of the steps that a fit is timed on.

    Args:
        setting: what all parts share.
        ours: the figures of gptmini, whose micro-batch nanoGPT takes too; None if gptmini's fit failed.
    """
    give_back_memory(setting.device)
    scale = setting.scale
    sizes = OmegaConf.merge(experiment("gpt2"), OmegaConf.from_dotlist(list(scale.sizes))).model

    folder = setting.folder / "nanogpt"
    copy_checkout(setting.nanogpt, folder)
    tokens = synthetic_tokens(scale, sizes.context_length).tokens("train")
    data = folder / "data" / "synthetic"
    data.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val"):
        tokens.tofile(data / f"{split}.bin")

    # nanoGPT holds more logits than gptmini, so that the largest micro-batch of the ladder is its limit.
    batch_size = min(ours["batch_size"] if ours else scale.sequences, scale.batch_sizes[-1])
    options = {
        "dataset": "synthetic",
        "batch_size": batch_size,
        "gradient_accumulation_steps": scale.sequences // batch_size,
        "block_size": sizes.context_length,
        "n_layer": sizes.n_layers,
        "n_head": sizes.n_heads,
        "n_embd": sizes.d_model,
        "bias": True,
        "max_iters": scale.steps,
        "eval_iters": 1,
        "eval_interval": 10**6,  # beyond the last step: nanoGPT evaluates at its first step alone
        "log_interval": 1,
        "device": setting.device,
        "compile": not setting.dry,
        "dtype": "float32" if setting.dry else "bfloat16",
        "out_dir": str(folder / "out"),
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    output = output_of(
        [sys.executable, "train.py", *flags],
        timeout=setting.table.left(),
        cwd=folder,
    )

    found = re.findall(r"^iter \d+: .* time ([\d.]+)ms", output, flags=re.MULTILINE)
    milliseconds = statistics.median(map(float, found[scale.first_step :]))
    seconds = milliseconds / 1000
    return {
        "tokens_per_second": scale.sequences * sizes.context_length / seconds,
        "ms_a_step": milliseconds,
        "batch_size": batch_size,
    }


def copy_checkout(checkout: Path, folder: Path) -> None:
    """Copy nanoGPT's files into a folder, so that what a run writes does not land in the checkout."""
    if folder.exists():
        return
    folder.mkdir()
    for name in FILES:
        shutil.copy(checkout / name, folder / name)
