"""The checkpoint file: tensors and plain JSON types, written whole or not at all, checked before it is read.

Layout: {"gptmini": {"format", "config", "tokenizer", ...}, "state_dict": {"model.<name>": tensor}, ...}. Sampling needs
these two entries; further entries hold what the trainer needs to go on, such as the state of the optimizer. Of a model
that is too large for one file, the tensors lie in a folder beside the file, as gptmini/model/shards.py describes.
"""

import math
import zipfile
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gptmini import __version__
from gptmini.files import flush_file, flush_folder, replace_by_link, replacing
from gptmini.model.config import GPTConfig, config_from_file
from gptmini.model.gpt import GPT
from gptmini.model.shards import check_shards, is_of_shards, read_rest, read_shards
from gptmini.user_error import UserError

FORMAT = 1  # number of the layout; read_checkpoint refuses any other
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # dtypes of a GPT's weights
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

    An old file at path is called previous from then on; it is gone if previous is None.
    Raises OSError: no room, no permission; the old file is untouched and the partial one removed.
    """
    try:
        with replacing(path) as file:
            torch.save(checkpoint, file)
            flush_file(file)  # the new file is on disk before the old one changes its name
            if previous is not None and path.exists():
                replace_by_link(path, previous)
    except (OSError, RuntimeError) as error:
        # Where writing is cut short, torch raises a RuntimeError, whose context is the file's error or an interrupt.
        cause = error if isinstance(error, OSError) else error.__context__
        if isinstance(cause, KeyboardInterrupt):
            raise cause from None
        if isinstance(cause, OSError):
            raise OSError(cause.errno, cause.strerror, str(path)) from error
        raise
    flush_folder(path.parent)


def read_checkpoint(path: Path, *, mapped: bool = False, is_checked: bool = False) -> dict:
    """Read a checkpoint onto the CPU without running any code in the file.

    Of shards, the tensors in the optimizer's state are StoredTensor, which read_stored reads.

    Args:
        path: the checkpoint's file.
        mapped: whether tensors stay in the file until they are used: who needs the weights alone does not read the
            state of the optimizer, which is twice as large. The file must not change meanwhile. Of shards, the
            optimizer's are left out.
        is_checked: whether the checksums were compared before, as by another process of the run.

    Raises UserError: another format, damage, or pickled code.
    """
    if is_of_shards(path):
        checkpoint = read_shards(path, only_weights=mapped, is_checked=is_checked)
    else:
        checkpoint = load_plain(path, mapped=mapped, whole=not is_checked)
    _check_format(checkpoint, path)
    return checkpoint


def read_header(path: Path) -> dict:
    """The entry "gptmini" of a checkpoint, without reading its weights or checking their checksums.

    Raises UserError: another format, damage, or pickled code.
    """
    if is_of_shards(path):
        checkpoint = read_rest(path)
    else:
        checkpoint = load_plain(path, mapped=True, whole=False)
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


def load_plain(path: Path, *, mapped: bool = False, whole: bool = True) -> dict:
    """The dict that torch.save wrote into a file, its tensors on the CPU, without running any code in the file.

    With mapped, tensors stay in the file until they are used. Without whole, checksums are not compared.

    Returns an empty dict where the file holds something else.
    Raises UserError: damage, or pickled code.
    """
    check_archive(path, whole=whole)
    try:
        contents = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # torch names no common class for what a foreign file can raise
        raise UserError(
            f"{path} must hold only tensors and plain data; "
            f"refused without running it ({type(error).__name__})"
        ) from error
    return contents if isinstance(contents, dict) else {}


def check_archive(path: Path, *, whole: bool = True) -> None:
    """Raise UserError unless path is a zip file as torch writes it; if it is read whole, with every checksum right."""
    try:
        with zipfile.ZipFile(path) as archive:
            odd = [entry for entry in archive.infolist() if not _is_plainly_stored(entry)]
            damaged = archive.testzip() if whole and not odd else None
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except zipfile.BadZipFile:
        raise UserError(
            f"{path} is not a checkpoint, or is cut short: it has no zip directory"
        ) from None
    except Exception as error:  # zipfile names no common class for a damaged directory
        raise UserError(
            f"{path} is damaged: its zip directory makes no sense ({type(error).__name__})"
        ) from error

    if odd:
        raise UserError(
            f"{path} is damaged, or no checkpoint: "
            f"its entry {odd[0].filename} is not as torch writes it"
        )
    if damaged is not None:
        raise UserError(f"{path} is damaged: the CRC-32 of {damaged} does not match")


def _is_plainly_stored(entry: zipfile.ZipInfo) -> bool:
    """Whether an entry of a zip file is stored as torch stores it: not compressed, and with no DOS attributes.

    For an entry that the DOS attributes mark as a folder, torch would read no bytes and leave a tensor's memory as it
    happened to be.
    """
    has_dos_attributes = entry.external_attr & 0xFF
    return entry.compress_type == zipfile.ZIP_STORED and not has_dos_attributes


def step_of(path: Path) -> float:
    """Optimizer step at which a checkpoint was written; infinity for a damaged file.

    The checksums of the whole file are checked, but its tensors are not read into memory.
    """
    try:
        if is_of_shards(path):
            checkpoint = read_rest(path)
            check_shards(path, checkpoint)
        else:
            check_archive(path)
            checkpoint = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        step = checkpoint["global_step"]
    except Exception:  # of any class; read_checkpoint tells how a file is damaged
        return math.inf

    if type(step) is not int or step < 0:
        return math.inf
    return step


def build_model(checkpoint: dict) -> GPT:
    """Build the GPT of a checkpoint that read_checkpoint returned, in eval mode on the CPU.

    Raises UserError: the config is no GPTConfig, or the weights do not fit the config.
    """
    config = config_of(checkpoint["gptmini"])

    # Two cheap comparisons, before a config that claims millions of layers makes torch build them.
    weights = _dense_weights(checkpoint["state_dict"])
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


def gpt_of_shapes(config: GPTConfig) -> GPT:
    """GPT on torch's meta device, whose weights have shapes only: sizes that a file merely claims take no memory."""
    with torch.device("meta"), _Undrawn():
        return GPT(config)


class _Undrawn(TorchFunctionMode):
    """Skips normal_ in a block: on the meta device torch would spend a second on importing its compiler for normal_."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        options = kwargs or {}
        if function is torch.nn.init.normal_:
            return options["tensor"]
        return function(*args, **options)


def _dense_weights(state: dict) -> dict[str, Tensor]:
    """Select a GPT's weights from the training module's state dict, under the names that they have in the GPT.

    Raises UserError: a weight is not a dense floating-point tensor, or the weights are of several dtypes.
    """
    weights = {}
    for name, tensor in state.items():
        if isinstance(name, str) and name.startswith(WEIGHTS_PREFIX):
            weights[name.removeprefix(WEIGHTS_PREFIX)] = tensor

    for name, tensor in weights.items():
        if not is_dense(tensor):
            raise UserError(f"the checkpoint's weight {name} must be a dense floating-point tensor")
    dtypes = {tensor.dtype for tensor in weights.values()}
    if len(dtypes) > 1:
        raise UserError("the checkpoint's weights must be of one dtype, got several")
    return weights


def is_dense(tensor: object) -> bool:
    """Whether this is a tensor in the CPU's memory, of a floating-point dtype that a GPT can have.

    Every number of it must lie in the file: a tensor of stride 0 repeats one number, and a file of a few bytes would
    take gigabytes once the tensor is copied.
    """
    if not isinstance(tensor, Tensor):
        return False
    is_on_cpu = tensor.layout is torch.strided and tensor.device.type == "cpu"
    return is_on_cpu and tensor.dtype in DTYPES and tensor.is_contiguous()
