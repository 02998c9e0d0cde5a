"""Read tensors from files that may come from somebody else. Code in these files never runs."""

import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from gptmini.system.errors import UserError
from gptmini.system.files import encodable
from gptmini.system.untrusted import file_size


def read_tensors(path: Path, *, mapped: bool = False, checked: bool = True) -> dict[str, Any]:
    """Read the dict of tensors and plain values that torch.save wrote into a file. The tensors are on the CPU.

    If `mapped`, tensors stay in the file until they are used, and the file must not change. If `checked`, verify the
    CRC-32 of every entry. Return an empty dict if the file does not contain a dict.

    Raises UserError if the file is damaged, contains pickled code, or has values that need more memory than its size.
    """
    size = file_size(path)
    _check_archive(path, checked=checked)
    mapped = mapped and encodable(str(path)) == str(path)  # torch maps only names in UTF-8
    try:
        contents = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # torch has no common class for these errors
        raise UserError(
            f"{path} must contain only tensors and plain values; "
            f"gptmini did not run any code from this file ({type(error).__name__})"
        ) from error

    _check_memory(contents, size, path)
    return contents if isinstance(contents, dict) else {}


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file. Raise UserError if it is damaged, a pipe or a device.

    The library refuses a file unless the tensors in it cover every byte exactly once.
    """
    file_size(path)
    try:
        return load_file(path)
    except SafetensorError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is not a complete safetensors file ({reason})") from None


def _check_archive(path: Path, *, checked: bool) -> None:
    """Raise UserError unless the file is a zip file as torch writes it: without compression and without DOS attributes.

    If an entry had the attribute of a folder, torch would leave the memory of a tensor uninitialized.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            odd = [
                e.filename for e in archive.infolist() if e.compress_type or e.external_attr & 255
            ]
            damaged = archive.testzip() if checked and not odd else None
    except PermissionError:
        raise
    except Exception as error:  # zipfile has no common class for these errors
        raise UserError(
            f"{path} is not a checkpoint, or the file is truncated or damaged ({error})"
        ) from None

    if odd:
        raise UserError(
            f"{path} is not a checkpoint, because torch does not write entries such as {odd[0]}"
        )
    if damaged is not None:
        raise UserError(f"{path} is damaged, because the CRC-32 of {damaged} does not match")


def _check_memory(contents: object, size: int, path: Path) -> None:
    """Raise UserError if the values need more memory than the `size` of their file, or if a tensor is not dense.

    A pickle can use the same long string, the same list of lists, or the same tensor any number of times.
    """
    n_values_left = size
    tensor_bytes_left = 2 * size  # a tied weight has two names, so it counts twice
    waiting = [contents]
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            # A tensor of stride 0 repeats one number. A copy of such a tensor could take gigabytes.
            has_memory = value.layout is torch.strided and value.device.type != "meta"
            is_plain = has_memory and not value.is_nested
            if not is_plain or value.nbytes > value.untyped_storage().nbytes():
                raise UserError(f"{path} must contain only dense tensors with all their values")
            tensor_bytes_left -= value.nbytes
        elif isinstance(value, str | bytes | dict | list | tuple | set):
            n_values_left -= len(value)
        if n_values_left < 0 or tensor_bytes_left < 0:
            raise UserError(
                f"{path} uses the same values several times; together they need more than the {size:,} bytes "
                "in the file"
            )

        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list | tuple | set):
            waiting += value
