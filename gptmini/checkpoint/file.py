"""The checkpoint file. It contains tensors and plain JSON types. It is written atomically and checked before reading.

Layout: {"gptmini": {"format", "config", "tokenizer", ...}, "state_dict": {"model.<name>": tensor}, ...}. Sampling needs
only these two entries. The other entries, such as the optimizer state, are needed only to resume a run.
"""

import math
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from gptmini.model import GPT, GPTConfig, config_from_file, meta_gpt
from gptmini.system.errors import UserError
from gptmini.system.files import flush_file, replacing
from gptmini.system.untrusted_tensors import read_tensors
from gptmini.system.version import __version__

FORMAT = 1  # number of this layout; read_checkpoint refuses a file with a different number
UNREAD = ("0.1.", "0.2.")  # versions that wrote the same layout, but other settings
WEIGHTS_PREFIX = "model."  # prefix of the GPT's weights in the training module


def header(config: GPTConfig, tokenizer: dict, **more: object) -> dict:
    """Return the entry "gptmini" of a checkpoint file: plain values, with the to_dict() of the tokenizer."""
    return {
        "format": FORMAT,
        "version": __version__,
        "config": asdict(config),
        "tokenizer": tokenizer,
        **more,
    }


def write_checkpoint(checkpoint: dict, path: Path, *, previous: Path | None = None) -> None:
    """Write a checkpoint atomically: write a temporary file, flush it to disk, and rename it.

    Just before this rename, an old file at `path` is renamed to `previous`, or overwritten if `previous` is None. A
    process that is killed between the two renames leaves no file at `path`, and a complete file at `previous`.

    Raises OSError if the disk is full or permission is missing. The old file is then unchanged, and the partial file is
    removed.
    """
    try:
        with replacing(path) as file:
            torch.save(checkpoint, file)
            flush_file(file)  # the new file is on disk before the old one changes its name
            if previous is not None and path.exists():
                path.replace(previous)
    except (OSError, RuntimeError) as error:
        # If writing fails, torch raises a RuntimeError. The __context__ of this error is the file's OSError or a
        # KeyboardInterrupt.
        cause = error if isinstance(error, OSError) else error.__context__
        if isinstance(cause, KeyboardInterrupt):
            raise cause from None
        if isinstance(cause, OSError):
            raise OSError(cause.errno, cause.strerror, str(path)) from error
        raise


def read_checkpoint(path: Path, *, mapped: bool = False, is_checked: bool = False) -> dict:
    """Read a checkpoint onto the CPU without running any code in the file.

    With mapped=True, tensors stay in the file until they are used, so that a caller that needs only the weights does
    not read the optimizer state. The file must not change before that. is_checked says that the checksums were verified
    before, for example by another process of the run.

    Raises UserError if the file has a different format, is damaged, or contains pickled code.
    """
    checkpoint = read_tensors(path, mapped=mapped, checked=not is_checked)
    _check_format(checkpoint, path)
    return checkpoint


def read_model(path: Path) -> GPT:
    """Read the GPT of a checkpoint, in eval mode on the CPU. The optimizer state is not read into memory."""
    mapped = build_model(read_checkpoint(path, mapped=True))
    return deepcopy(mapped)  # another program may change the file


def _check_format(checkpoint: dict, path: Path) -> None:
    entry = checkpoint.get("gptmini")
    if not isinstance(entry, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise UserError(
            f"{path} is not a gptmini checkpoint: the gptmini header or the weights are missing"
        )

    written_by = str(entry.get("version"))
    is_known = isinstance(entry.get("format"), int) and entry["format"] == FORMAT
    if not is_known or written_by.startswith(UNREAD):
        raise UserError(
            f"{path} was written by gptmini {written_by:.20}, in format {entry.get('format')!r:.20}; export the model "
            "with that version, and import the export"
        )


def step_of(path: Path) -> float:
    """Return the optimizer step of a checkpoint. Return infinity if the file is damaged or does not store a step.

    All checksums of the file are verified, but its tensors are not read into memory.
    """
    try:
        return read_tensors(path, mapped=True)["global_step"]
    except (UserError, KeyError):  # TrainingState reports what is wrong with the file
        return math.inf


def build_model(checkpoint: dict) -> GPT:
    """Build the GPT of a checkpoint that read_checkpoint returned, in eval mode on the CPU."""
    config = config_of(checkpoint["gptmini"])

    weights = _weights_of(checkpoint["state_dict"])
    if config.n_layers > len(weights):  # before torch builds that many layers
        raise UserError(
            "the weights of the checkpoint do not match its config: "
            f"expected {config.n_layers} layers, got {len(weights)} weights"
        )

    model = meta_gpt(config)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        reasons = " ".join(line.strip() for line in str(error).splitlines()[1:])
        raise UserError(
            f"the weights of the checkpoint do not match its config: {reasons}"
        ) from None
    return model.eval()


def config_of(entry: dict) -> GPTConfig:
    """Read the GPTConfig in the entry "gptmini" of a checkpoint. Raise UserError if the config is not a GPTConfig."""
    settings = entry.get("config")
    if not isinstance(settings, dict):
        raise UserError("the checkpoint does not contain a config")
    try:
        return config_from_file(settings)
    except (ValueError, TypeError) as error:  # TypeError: a key is not a string
        raise UserError(f"the config of the checkpoint is not a valid GPTConfig: {error}") from None


def _weights_of(state: dict) -> dict[str, Tensor]:
    weights = {}
    for name, tensor in state.items():
        if isinstance(name, str) and name.startswith(WEIGHTS_PREFIX):
            weights[name.removeprefix(WEIGHTS_PREFIX)] = tensor

    for name, tensor in weights.items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            raise UserError(f"the weight {name} of the checkpoint must be a floating-point tensor")

    dtypes = {tensor.dtype for tensor in weights.values()}
    if len(dtypes) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        raise UserError(f"all weights of the checkpoint must have the same dtype, got {names}")
    return weights
