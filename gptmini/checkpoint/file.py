"""The checkpoint file. It contains tensors and plain JSON types. It is written atomically and checked before reading.

Layout: {"gptmini": {"format", "config", "tokenizer", ...}, "state_dict": {"model.<name>": tensor}, ...}. Sampling needs
only these two entries. The other entries, such as the optimizer state, are needed only to resume a run.
"""

import math
from copy import deepcopy
from dataclasses import asdict, dataclass
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
    return checkpoint


def read_model(path: Path) -> GPT:
    """Read the GPT of a checkpoint, in eval mode on the CPU. The optimizer state is not read into memory."""
    mapped = build_model(read_checkpoint(path, mapped=True))
    return deepcopy(mapped)  # another program may change the file


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


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """The other entries of a checkpoint, from which a run resumes."""

    path: Path  # the checkpoint file
    model: GPT  # in training mode, on the CPU
    tokenizer: dict  # the tokenizer's to_dict()
    data_folder: Path  # folder of the token files that the run started with
    data_fingerprint: str  # fingerprint of the data's text, split and tokenizer
    step: int  # optimizer steps done
    max_steps: int  # the run's last optimizer step
    validated_step: int  # latest validated step
    # Path, step, optimizer and published details of the initial weights. None: the weights were random.
    origin: dict | None
    bad_steps: int  # steps that were not applied, because loss or gradient was not finite
    bad_steps_in_a_row: int  # bad steps since the last applied step
    optimizer: dict[str, dict[str, Tensor]]  # moments and step count of each parameter, by name
    callbacks: dict[str, dict]  # state_dict() of each callback, by state_key

    @classmethod
    def parse(cls, checkpoint: dict, path: Path) -> "TrainingState":
        """Build the training state of a checkpoint that read_checkpoint returned. `path` is the file of the checkpoint.

        Raises UserError if the checkpoint holds only a model, or if its training state has a different layout.
        """
        try:
            entry = checkpoint["gptmini"]
            bad_steps, bad_steps_in_a_row = entry["bad_steps"]
            (optimizer,) = checkpoint["optimizer_states"]

            return cls(
                path=path,
                model=build_model(checkpoint).train(),
                tokenizer=entry["tokenizer"],
                data_folder=Path(entry["data"]["folder"]),
                data_fingerprint=entry["data"]["fingerprint"],
                step=checkpoint["global_step"],
                max_steps=entry["max_steps"],
                validated_step=entry["validated_step"],
                origin=entry.get("init_from"),
                bad_steps=bad_steps,
                bad_steps_in_a_row=bad_steps_in_a_row,
                optimizer=optimizer["state"],
                callbacks=checkpoint["callbacks"],
            )

        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError):  # an entry is missing or has a wrong type
            raise UserError(
                f"{path} has no training state that this version can resume from"
            ) from None
