"""Read files that may come from somebody else. Code in these files never runs. Pipes and devices are never read.

Examples of such files are checkpoints, exported models, prepared tokens, and the configuration of a resumed run.
"""

import io
import json
import math
import pickle
import pickletools
import re
import stat
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gptmini.system.errors import UserError
from gptmini.system.files import encodable

if TYPE_CHECKING:  # importing torch takes seconds, and a configuration is read without it
    from torch import Tensor

# libyaml's parser is eight times faster than Python's, but PyYAML can be built without libyaml.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# The escape sequence of a lone surrogate. It occurs in file names that are not UTF-8. libyaml's parser refuses it.
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# The start of a run's config.yaml. gptmini 0.2 wrote the last of the three forms in parentheses.
RUN_CONFIG = re.compile(rb"version: [^\n]*(\nbegun:|\ntyped:| # of gptmini)")
HEAD = 1024  # bytes at the start of a file that are enough for RUN_CONFIG

# Maximum bytes of a JSON file. The largest published vocabularies have half as many bytes. If a file of this size
# contains only empty lists, reading it takes 1.6 GB of memory.
LARGEST_JSON = 2**26
LARGEST_YAML = 2**20  # bytes; the configuration of a run is about a hundred times smaller
DEEPEST_YAML = 100  # levels of nested dicts and lists; the configuration of a run has five levels
PLAIN = (str, int, float, bool, type(None))  # types of the values in a configuration


def read_tensors(path: Path, *, mapped: bool = False, checked: bool = True) -> dict[str, Any]:
    """Read the dict of tensors and plain values that torch.save wrote into a file. The tensors are on the CPU.

    If `mapped`, tensors stay in the file until they are used, and the file must not change. If `checked`, verify the
    CRC-32 of every entry. Return an empty dict if the file does not contain a dict.

    Raises UserError if the file is damaged, contains pickled code, or has values that need more memory than its size.
    """
    import torch

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


def read_safetensors(path: Path) -> "dict[str, Tensor]":
    """Read the tensors of a safetensors file. Raise UserError if it is damaged, a pipe or a device.

    The library refuses a file unless the tensors in it cover every byte exactly once.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file_size(path)
    try:
        return load_file(path)
    except SafetensorError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is not a complete safetensors file ({reason})") from None


def read_text(path: Path) -> str:
    """Read a UTF-8 file with line feeds as line ends. Raise UserError if it is too large or is not UTF-8."""
    try:
        return io.TextIOWrapper(io.BytesIO(_content(path, LARGEST_JSON)), encoding="utf-8").read()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error})") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file. Raise UserError if the file is too large or contains something else."""
    content = _content(path, LARGEST_JSON)
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error})") from None

    if not isinstance(values, dict):
        raise UserError(f"{path} must contain a JSON object, got {type(values).__name__}")
    return values


def read_yaml(path: Path, *, trusted: bool = False) -> dict[str, Any]:
    """Read the mapping in a YAML file. Return an empty dict for an empty file.

    If the file is not trusted, its values must be plain, and aliases are refused, because a few can expand to
    terabytes. Raises UserError for other contents or a file that is too large.
    """
    text = _content(path, LARGEST_YAML)
    loader = yaml.SafeLoader if SURROGATE.search(text) else LOADER

    try:
        if not trusted:
            _check_events(yaml.parse(text, Loader=loader))
        tree = yaml.load(text, Loader=loader) or {}
        if not isinstance(tree, dict):
            raise ValueError("the file has no keys")
        odd = [value for _, value in nodes(tree) if type(value) not in (*PLAIN, dict, list)]
        if not trusted and odd:
            raise ValueError(f"the file contains a {type(odd[0]).__name__}")
    except Exception as error:  # PyYAML can raise any error when it converts a date or a number
        reason = " ".join(str(error).split())
        raise UserError(f"{path} must be YAML with keys and plain values ({reason})") from None
    return tree


def is_run_config(path: Path) -> bool:
    """Whether gptmini wrote a config.yaml into the folder of a run. Other programs write files of this name, too."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return RUN_CONFIG.match(file.read(HEAD)) is not None


def read_pickle(path: Path) -> Any:
    """Read a pickle of plain values. Raise pickle.UnpicklingError if the pickle names a class or a function.

    Raises ValueError for a length or a memo index beyond the file. Python would allocate memory for it first.
    """
    content = _content(path, LARGEST_JSON)
    for operation, argument, _ in pickletools.genops(content):
        is_memo = isinstance(argument, int) and operation.name.endswith("PUT")
        if is_memo and argument > len(content):
            raise ValueError(f"memo index {argument} is larger than the file")
    return _PlainUnpickler(io.BytesIO(content)).load()


def nodes(tree: object, above: tuple = ()) -> Iterator[tuple[tuple, object]]:
    """Yield the path of keys and the value of each entry in a tree of dicts and lists, parents first."""
    entries: Any = ()
    if isinstance(tree, dict):
        entries = tree.items()
    elif isinstance(tree, list):
        entries = enumerate(tree)

    for key, value in entries:
        yield (*above, key), value
        yield from nodes(value, (*above, key))


def check_plain_folder(folder: Path) -> None:
    """Raise UserError if a folder contains anything except regular files and folders, at any depth.

    Writing through a link could change any file of the user, and reading a pipe could block for ever. The folder wandb
    may contain links: Weights & Biases makes them, and gptmini writes nothing there.
    """
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        is_of_wandb = stat.S_ISLNK(mode) and folder / "wandb" in path.parents
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode) and not is_of_wandb:
            raise UserError(
                f"{path} must be a regular file or a folder, but it is a link, a pipe or a device; "
                "replace it with a copy of the file"
            )


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        raise pickle.UnpicklingError(f"expected only plain values, got {module}.{name}")


def file_size(path: Path, most: float = math.inf) -> int:
    """Return the size of a file in bytes. Follow links, because the cache of the Hugging Face hub contains links.

    Raises UserError if the file has more than `most` bytes, or is a pipe or a device, which could block a reader.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path} is not a regular file")
    if status.st_size > most:
        raise UserError(f"{path} must have at most {most:,} bytes, got {status.st_size:,}")
    return status.st_size


def _content(path: Path, most: int) -> bytes:
    size = file_size(path, most)
    with path.open("rb") as file:
        return file.read(size)


def _check_events(events: "Iterable[yaml.Event]") -> None:
    """Raise ValueError if YAML has aliases, or if it is nested so deeply that libyaml would overflow the stack."""
    depth = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("the file has aliases")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST_YAML:
            raise ValueError(f"the file is nested deeper than {DEEPEST_YAML} levels")


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
    import torch

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
