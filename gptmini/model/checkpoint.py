"""The checkpoint file: tensors and plain JSON types, written whole or not at all, checked before it is read.

Layout: {"gptmini": {"format", "config", "tokenizer", ...}, "state_dict": {"model.<name>": tensor}, ...}; whatever else
the trainer keeps (optimizer, loops) stands beside these two and is not needed to sample.
"""

import os
import zipfile
from dataclasses import asdict
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

from gptmini.model.config import GPTConfig
from gptmini.model.gpt import GPT

FORMAT = 1
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # that a GPT computes in
WEIGHTS_PREFIX = "model."  # the name under which the training module holds the GPT


def header(config: GPTConfig, tokenizer: dict, **more: object) -> dict:
    """What a checkpoint says of itself: format, asdict(config), the tokenizer's dict, and more plain values."""
    return {"format": FORMAT, "config": asdict(config), "tokenizer": tokenizer, **more}


def write_checkpoint(checkpoint: dict, path: Path, *, previous: Path | None = None) -> None:
    """Write beside the final name, flush to disk, rename: a reader sees the old file or the new one.

    The old file is called previous from then on, or gone if that is None.
    Raises OSError: no room, no permission; the old file is untouched and the partial one removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            replace_by_link(path, previous)
        temporary.replace(path)
    except (OSError, RuntimeError) as error:
        cause = error if isinstance(error, OSError) else error.__context__  # the file's own, over which torch fails
        if isinstance(cause, KeyboardInterrupt):
            raise cause from None
        if isinstance(cause, OSError):
            raise OSError(cause.errno, cause.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)
    flush_folder(path.parent)


def replace_by_link(source: Path, target: Path) -> None:
    """Make target another name of source's file, in one step for whoever looks; OSError leaves target as it was."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    os.link(source, temporary)
    try:
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)  # rename does nothing where both already are the same file
    flush_folder(target.parent)


def flush_folder(folder: Path) -> None:
    """Make renames and links inside the folder survive a power cut."""
    if os.name == "posix":  # other systems have no handle on a folder to flush
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def find_checkpoint(path: str | Path) -> Path:
    """Resolve a checkpoint file, or a run folder to its best checkpoint, else its last; ValueError if there is none."""
    path = Path(path)
    if path.is_file():
        return path
    if not path.is_dir():
        raise ValueError(f"{path} does not exist; give a run folder (runs/latest) or a .ckpt file")
    for name in ("best.ckpt", "last.ckpt"):
        if (candidate := path / "checkpoints" / name).is_file():
            return candidate
    raise ValueError(f"{path} holds no checkpoints/best.ckpt or checkpoints/last.ckpt; train first, or give a file")


def read_checkpoint(path: Path) -> dict:
    """Read a checkpoint onto the CPU, running nothing in it; ValueError: another format, damage, or pickled code."""
    check_archive(path)
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch names no common class for what a foreign file can raise
        raise ValueError(
            f"{path} must hold only tensors and plain data; refused without running it ({type(error).__name__})"
        ) from error
    own = checkpoint.get("gptmini") if isinstance(checkpoint, dict) else None
    if not isinstance(own, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise ValueError(f"{path} is not a gptmini checkpoint: it lacks the gptmini header or the weights")
    if type(own.get("format")) is not int or own["format"] != FORMAT:
        raise ValueError(
            f"{path} has checkpoint format {own.get('format')!r}, this version reads {FORMAT}; "
            "use the version of gptmini that wrote it"
        )
    return checkpoint


def check_archive(path: Path) -> None:
    """Raise ValueError unless path is a zip file as torch writes it, with every checksum right."""
    try:
        with zipfile.ZipFile(path) as archive:
            # Torch stores plainly, and leaves the memory of what is marked as a folder (DOS attributes) as it was.
            entries = archive.infolist()
            odd = [e for e in entries if e.compress_type != zipfile.ZIP_STORED or e.external_attr & 0xFF]
            damaged = None if odd else archive.testzip()
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except zipfile.BadZipFile:
        raise ValueError(f"{path} is not a checkpoint, or is cut short: it has no zip directory") from None
    except Exception as error:  # zipfile names no common class for what a damaged directory can raise
        raise ValueError(f"{path} is damaged: its zip directory makes no sense ({type(error).__name__})") from error
    if odd:
        raise ValueError(f"{path} is damaged, or no checkpoint: its entry {odd[0].filename} is not as torch writes it")
    if damaged is not None:
        raise ValueError(f"{path} is damaged: the CRC-32 of {damaged} does not match")


def build_model(checkpoint: dict) -> GPT:
    """GPT of a checkpoint that was read, in eval mode on the CPU; ValueError unless config and weights fit."""
    try:
        config = GPTConfig(**checkpoint["gptmini"].get("config"))
    except TypeError as error:
        raise ValueError(f"the checkpoint's config must have the fields of GPTConfig: {error}") from None
    weights = _dense_weights(checkpoint["state_dict"])
    embedding = weights.get("embedding.weight", torch.empty(0)).shape
    if embedding != (config.padded_vocab_size, config.d_model) or config.n_layers > len(weights):
        raise ValueError(
            f"the checkpoint's weights do not fit its config: {config.n_layers} layers and an embedding of "
            f"({config.padded_vocab_size}, {config.d_model}) are claimed, the embedding is {tuple(embedding)}"
        )
    with torch.device("meta"), _Undrawn():  # shapes only: no memory is taken for what a header merely claims
        model = GPT(config)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        reasons = " ".join(line.strip() for line in str(error).splitlines()[1:])
        raise ValueError(f"the checkpoint's weights do not fit its config: {reasons}") from None
    return model.eval()


class _Undrawn(TorchFunctionMode):
    """Leaves normal weights undrawn: on the meta device torch would import its compiler to draw them, for a second."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return kwargs["tensor"] if function is torch.nn.init.normal_ else function(*args, **(kwargs or {}))


def _dense_weights(state: dict) -> dict[str, torch.Tensor]:
    """The GPT's tensors of a state dict by the GPT's own names; ValueError unless all are dense floats of one dtype."""
    ours = [name for name in state if isinstance(name, str) and name.startswith(WEIGHTS_PREFIX)]
    weights = {name.removeprefix(WEIGHTS_PREFIX): state[name] for name in ours}
    for name, tensor in weights.items():
        if not is_dense(tensor):
            raise ValueError(f"the checkpoint's weight {name} must be a dense floating-point tensor")
    if len({tensor.dtype for tensor in weights.values()}) > 1:
        raise ValueError("the checkpoint's weights must be of one dtype, got several")
    return weights


def is_dense(tensor: object) -> bool:
    """Whether this is a tensor whose floating-point numbers are all in the CPU's memory."""
    plain = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and tensor.device.type == "cpu"
    return plain and tensor.dtype in DTYPES
