"""The checkpoint file: tensors and plain JSON types, written whole or not at all, checked before it is read.

Layout: {"gptmini": {"format", "config", "tokenizer", ...}, "state_dict": {"model.<name>": tensor}, ...}. Sampling needs
these two entries; further entries hold what the trainer needs to go on, such as the state of the optimizer.
"""

import math
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from gptmini.files import flush_file, replacing
from gptmini.model.config import GPTConfig, config_from_file
from gptmini.model.gpt import GPT, gpt_of_shapes
from gptmini.untrusted import read_tensors
from gptmini.user_error import UserError
from gptmini.version import __version__

FORMAT = 1  # number of the layout; read_checkpoint refuses any other
WEIGHTS_PREFIX = "model."  # the name under which the training module holds the GPT


def header(config: GPTConfig, tokenizer: dict, **more: object) -> dict:
    """Describe a checkpoint in plain values: the entry "gptmini" of the file.

    Args:
        config: sizes and alternatives of the model.
        tokenizer: the tokenizer's to_dict().
        more: further entries.

    Returns the format, the version of gptmini that runs, asdict(config), tokenizer, and more.
    """
    return {
        "format": FORMAT,
        "version": __version__,
        "config": asdict(config),
        "tokenizer": tokenizer,
        **more,
    }


def write_checkpoint(checkpoint: dict, path: Path, *, previous: Path | None = None) -> None:
    """Write a checkpoint whole or not at all: beside its name, flushed to disk, renamed.

    An old file at path takes the name previous just before; it is gone if previous is None. A process that is killed
    between the two renames leaves no file at path, and a complete one at previous.
    Raises OSError: no room, no permission; the old file is untouched and the partial one removed.
    """
    try:
        with replacing(path) as file:
            torch.save(checkpoint, file)
            flush_file(file)  # the new file is on disk before the old one changes its name
            if previous is not None and path.exists():
                path.replace(previous)
    except (OSError, RuntimeError) as error:
        # Where writing is cut short, torch raises a RuntimeError, whose context is the file's error or an interrupt.
        cause = error if isinstance(error, OSError) else error.__context__
        if isinstance(cause, KeyboardInterrupt):
            raise cause from None
        if isinstance(cause, OSError):
            raise OSError(cause.errno, cause.strerror, str(path)) from error
        raise


def read_checkpoint(path: Path, *, mapped: bool = False, is_checked: bool = False) -> dict:
    """Read a checkpoint onto the CPU without running any code in the file.

    Args:
        path: the checkpoint's file.
        mapped: whether tensors stay in the file until they are used: who needs the weights alone does not read the
            state of the optimizer, which is twice as large. The file must not change meanwhile.
        is_checked: whether the checksums were compared before, as by another process of the run.

    Raises UserError: another format, damage, or pickled code.
    """
    checkpoint = read_tensors(path, mapped=mapped, checked=not is_checked)
    _check_format(checkpoint, path)
    return checkpoint


def read_header(path: Path) -> dict:
    """The entry "gptmini" of a checkpoint, without reading its weights or checking their checksums.

    Raises UserError: another format, damage, or pickled code.
    """
    checkpoint = read_tensors(path, mapped=True, checked=False)
    _check_format(checkpoint, path)
    return checkpoint["gptmini"]


def _check_format(checkpoint: dict, path: Path) -> None:
    """Raise UserError unless the contents of a file are those of a checkpoint that this version reads."""
    own = checkpoint.get("gptmini")
    if not isinstance(own, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise UserError(
            f"{path} is not a gptmini checkpoint: it lacks the gptmini header or the weights"
        )
    if type(own.get("format")) is not int or own["format"] != FORMAT:
        raise UserError(
            f"{path} has checkpoint format {own.get('format')!r}, this version reads {FORMAT}; "
            "use the version of gptmini that wrote it"
        )


def step_of(path: Path) -> float:
    """Optimizer step at which a checkpoint was written; infinity for a file that is damaged or names no step.

    The checksums of the whole file are checked, but its tensors are not read into memory.
    """
    try:
        return read_tensors(path, mapped=True)["global_step"]
    except (UserError, KeyError):  # TrainingState tells what is wrong with the file
        return math.inf


def build_model(checkpoint: dict) -> GPT:
    """Build the GPT of a checkpoint that read_checkpoint returned, in eval mode on the CPU.

    Raises UserError: the config is no GPTConfig, or the weights do not fit the config.
    """
    config = config_of(checkpoint["gptmini"])

    # Two cheap comparisons, before a config that claims millions of layers makes torch build them.
    weights = _weights_of(checkpoint["state_dict"])
    claimed = (config.padded_vocab_size, config.d_model)
    embedding = weights.get("embedding.weight", torch.empty(0)).shape
    if embedding != claimed or config.n_layers > len(weights):
        raise UserError(
            "the checkpoint's weights do not fit its config: "
            f"{config.n_layers} layers and an embedding of {claimed} are claimed, "
            f"the embedding is {tuple(embedding)}"
        )

    model = gpt_of_shapes(config)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        reasons = " ".join(line.strip() for line in str(error).splitlines()[1:])
        raise UserError(f"the checkpoint's weights do not fit its config: {reasons}") from None
    return model.eval()


def config_of(own: dict) -> GPTConfig:
    """The sizes in the entry "gptmini" of a checkpoint; UserError if they are no GPTConfig."""
    settings = own.get("config")
    if not isinstance(settings, dict):
        raise UserError("the checkpoint must have a config")
    try:
        return config_from_file(settings)
    except (ValueError, TypeError) as error:  # a TypeError for a key that is no text
        raise UserError(
            f"the checkpoint's config must have the fields of GPTConfig: {error}"
        ) from None


def _weights_of(state: dict) -> dict[str, Tensor]:
    """Select a GPT's weights from the training module's state dict, under the names that they have in the GPT.

    Raises UserError: a weight is no tensor of floating-point numbers, or the weights are of several dtypes.
    """
    weights = {}
    for name, tensor in state.items():
        if isinstance(name, str) and name.startswith(WEIGHTS_PREFIX):
            weights[name.removeprefix(WEIGHTS_PREFIX)] = tensor

    for name, tensor in weights.items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            raise UserError(f"the checkpoint's weight {name} must be of floating-point numbers")
    dtypes = {tensor.dtype for tensor in weights.values()}
    if len(dtypes) > 1:
        raise UserError("the checkpoint's weights must be of one dtype, got several")
    return weights
