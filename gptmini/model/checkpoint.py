"""The checkpoint file: tensors and plain JSON types, written whole or not at all, checked before it is read.

Layout: {"gptmini": {"format", "config", "tokenizer", ...}, "state_dict": {"model.<name>": tensor}, ...}; whatever else
the trainer keeps (optimizer, loops) stands beside these two and is not needed to sample.
"""

import math
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gptmini import __version__
from gptmini.checks import UserError
from gptmini.files import flush_file, flush_folder, replace_by_link, replacing
from gptmini.model.config import GPTConfig
from gptmini.model.gpt import GPT

FORMAT = 1
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # that a GPT computes in
WEIGHTS_PREFIX = "model."  # the name under which the training module holds the GPT


def header(config: GPTConfig, tokenizer: dict, **more: object) -> dict:
    """What a checkpoint says of itself, in plain values.

    These are its format, the version of gptmini that wrote it, asdict(config), the tokenizer's to_dict(), and more.
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

    The old file is called previous from then on, or gone if that is None.
    Raises OSError: no room, no permission; the old file is untouched and the partial one removed.
    """
    try:
        with replacing(path) as file:
            torch.save(checkpoint, file)
            flush_file(file)  # the new file is on disk before the old one changes its name
            if previous is not None and path.exists():
                replace_by_link(path, previous)
    except (OSError, RuntimeError) as error:
        cause = error if isinstance(error, OSError) else error.__context__  # the file's own, over which torch fails
        if isinstance(cause, KeyboardInterrupt):
            raise cause from None
        if isinstance(cause, OSError):
            raise OSError(cause.errno, cause.strerror, str(path)) from error
        raise
    flush_folder(path.parent)


def find_checkpoint(path: str | Path) -> Path:
    """Resolve a checkpoint file, or a run folder to its best checkpoint, else its last; UserError if there is none."""
    path = Path(path)
    if path.is_file():
        return path
    if not path.is_dir():
        raise UserError(f"{path} does not exist; give a run folder (runs/latest) or a .ckpt file")
    for name in ("best.ckpt", "last.ckpt"):
        if (candidate := path / "checkpoints" / name).is_file():
            return candidate
    raise UserError(f"{path} holds no checkpoints/best.ckpt or checkpoints/last.ckpt; train first, or give a file")


def read_checkpoint(path: Path) -> dict:
    """Read a checkpoint onto the CPU, running nothing in it; UserError: another format, damage, or pickled code."""
    check_archive(path)
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch names no common class for what a foreign file can raise
        raise UserError(
            f"{path} must hold only tensors and plain data; refused without running it ({type(error).__name__})"
        ) from error
    own = checkpoint.get("gptmini") if isinstance(checkpoint, dict) else None
    if not isinstance(own, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise UserError(f"{path} is not a gptmini checkpoint: it lacks the gptmini header or the weights")
    if type(own.get("format")) is not int or own["format"] != FORMAT:
        raise UserError(
            f"{path} has checkpoint format {own.get('format')!r}, this version reads {FORMAT}; "
            "use the version of gptmini that wrote it"
        )
    return checkpoint


def check_archive(path: Path) -> None:
    """Raise UserError unless path is a zip file as torch writes it, with every checksum right."""
    try:
        with zipfile.ZipFile(path) as archive:
            # Torch stores plainly, and leaves the memory of what is marked as a folder (DOS attributes) as it was.
            entries = archive.infolist()
            odd = [e for e in entries if e.compress_type != zipfile.ZIP_STORED or e.external_attr & 0xFF]
            damaged = None if odd else archive.testzip()
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except zipfile.BadZipFile:
        raise UserError(f"{path} is not a checkpoint, or is cut short: it has no zip directory") from None
    except Exception as error:  # zipfile names no common class for what a damaged directory can raise
        raise UserError(f"{path} is damaged: its zip directory makes no sense ({type(error).__name__})") from error
    if odd:
        raise UserError(f"{path} is damaged, or no checkpoint: its entry {odd[0].filename} is not as torch writes it")
    if damaged is not None:
        raise UserError(f"{path} is damaged: the CRC-32 of {damaged} does not match")


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """What a run goes on from: the training half of a checkpoint, parsed and checked once."""

    path: Path  # of the checkpoint
    model: GPT  # in training mode, on the CPU
    tokenizer: dict  # its to_dict()
    data_folder: Path  # of the tokens that the run began with
    data_fingerprint: str  # of their text, split and tokenizer
    step: int  # optimizer steps done
    max_steps: int  # that the run was to do
    validated_step: int  # newest step that a validation followed
    bad_steps: int  # steps that were not applied, because loss or gradient was not finite
    bad_steps_in_a_row: int  # of them, those since the last step that was applied
    optimizer: dict[str, dict[str, Tensor]]  # moments and number of steps, by the name of their parameter
    callbacks: dict[str, dict]  # state_dict() of each callback, by its state_key

    @classmethod
    def parse(cls, checkpoint: dict, path: Path) -> "TrainingState":
        """Take apart a checkpoint that read_checkpoint returned.

        Raises UserError: it holds a model alone, or counts and tensors that do not belong together.
        """
        try:
            own = checkpoint["gptmini"]
            bad_steps, bad_steps_in_a_row = own["bad_steps"]
            (optimizer,) = checkpoint["optimizer_states"]
            state = cls(
                path=path,
                model=build_model(checkpoint).train(),
                tokenizer=own["tokenizer"],
                data_folder=Path(own["data"]["folder"]),
                data_fingerprint=own["data"]["fingerprint"],
                step=checkpoint["global_step"],
                max_steps=own["max_steps"],
                validated_step=own["validated_step"],
                bad_steps=bad_steps,
                bad_steps_in_a_row=bad_steps_in_a_row,
                optimizer=optimizer["state"],
                callbacks=checkpoint["callbacks"],
            )
            consistent = state._is_consistent()
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        except Exception:  # of whatever class: the file may be a stranger's
            consistent = False

        if not consistent:
            raise UserError(f"{path} holds no training state that this version can go on from")
        return state

    def _is_consistent(self) -> bool:
        """Whether every field is of its type, and the counts agree with what the optimizer has done."""
        counts = (self.step, self.max_steps, self.validated_step, self.bad_steps, self.bad_steps_in_a_row)
        if not all(type(count) is int and count >= 0 for count in counts):
            return False
        if type(self.data_fingerprint) is not str or type(self.tokenizer) is not dict:
            return False
        if type(self.callbacks) is not dict or not all(type(key) is str for key in self.callbacks):
            return False

        n_applied = self.step - self.bad_steps
        if not self.optimizer and n_applied:
            return False
        for name, moments in self.optimizer.items():
            if type(name) is not str or not all(is_dense(tensor) for tensor in moments.values()):
                return False
            if moments["step"] != n_applied:
                return False
        return True


def step_of(path: Path) -> float:
    """Step that a file is of, its checksums right but its tensors not read; infinite if it is damaged."""
    try:
        check_archive(path)
        step = torch.load(path, map_location="cpu", mmap=True, weights_only=True)["global_step"]
    except Exception:  # of whatever class: read_checkpoint will say how the file is damaged
        return math.inf
    return step if type(step) is int and step >= 0 else math.inf


def build_model(checkpoint: dict) -> GPT:
    """GPT of a checkpoint that was read, in eval mode on the CPU; UserError unless config and weights fit."""
    try:
        config = GPTConfig(**checkpoint["gptmini"].get("config"))
    except TypeError as error:
        raise UserError(f"the checkpoint's config must have the fields of GPTConfig: {error}") from None
    weights = _dense_weights(checkpoint["state_dict"])
    embedding = weights.get("embedding.weight", torch.empty(0)).shape
    if embedding != (config.padded_vocab_size, config.d_model) or config.n_layers > len(weights):
        raise UserError(
            f"the checkpoint's weights do not fit its config: {config.n_layers} layers and an embedding of "
            f"({config.padded_vocab_size}, {config.d_model}) are claimed, the embedding is {tuple(embedding)}"
        )
    with torch.device("meta"), _Undrawn():  # shapes only: no memory is taken for what a header merely claims
        model = GPT(config)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        reasons = " ".join(line.strip() for line in str(error).splitlines()[1:])
        raise UserError(f"the checkpoint's weights do not fit its config: {reasons}") from None
    return model.eval()


class _Undrawn(TorchFunctionMode):
    """Leaves normal weights undrawn: on the meta device torch would import its compiler to draw them, for a second."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return kwargs["tensor"] if function is torch.nn.init.normal_ else function(*args, **(kwargs or {}))


def _dense_weights(state: dict) -> dict[str, torch.Tensor]:
    """The GPT's tensors of a state dict by the GPT's own names; UserError unless all are dense floats of one dtype."""
    ours = [name for name in state if isinstance(name, str) and name.startswith(WEIGHTS_PREFIX)]
    weights = {name.removeprefix(WEIGHTS_PREFIX): state[name] for name in ours}
    for name, tensor in weights.items():
        if not is_dense(tensor):
            raise UserError(f"the checkpoint's weight {name} must be a dense floating-point tensor")
    if len({tensor.dtype for tensor in weights.values()}) > 1:
        raise UserError("the checkpoint's weights must be of one dtype, got several")
    return weights


def is_dense(tensor: object) -> bool:
    """Whether this is a tensor whose floating-point numbers are all in the CPU's memory."""
    plain = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and tensor.device.type == "cpu"
    return plain and tensor.dtype in DTYPES
