"""Read files that may come from somebody else. Code in these files never runs. Pipes and devices are never read.

Examples are checkpoints, exported models, prepared tokens, and the configuration of a resumed run.
"""

import io
import json
import math
import pickle
import pickletools
import re
import stat
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gptmini.files import encodable
from gptmini.user_error import UserError

if TYPE_CHECKING:  # importing torch takes seconds, and a configuration is read without it
    from torch import Tensor

# libyaml's parser is eight times faster than Python's, but PyYAML can be built without libyaml.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# The escape of a lone surrogate, as in a file name that is not UTF-8. libyaml's parser refuses it.
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

# Maximum bytes of a JSON file. The largest published vocabularies have half as many bytes. If a file of this size
# contains only empty lists, reading it takes 1.6 GB of memory.
LARGEST_JSON = 2**26
LARGEST_YAML = 2**20  # bytes; a run's configuration has a hundredth of this
DEEPEST_YAML = 100  # levels of nested dicts and lists; a run's configuration has five
PLAIN = (str, int, float, bool, type(None))  # types of values in a configuration


def read_tensors(path: Path, *, mapped: bool = False, checked: bool = True) -> dict[str, Any]:
    """Read onto the CPU the dict of tensors and plain values that torch.save wrote into a file.

    Args:
        path: a zip file from torch.save.
        mapped: whether tensors stay in the file until they are used. The file must not change meanwhile.
        checked: whether to verify the CRC-32 of every entry.

    Returns an empty dict if the file does not contain a dict.
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
            f"refused, no code was run ({type(error).__name__})"
        ) from error

    _check_memory(contents, size, path)
    return contents if isinstance(contents, dict) else {}


def read_safetensors(path: Path) -> "dict[str, Tensor]":
    """Read the tensors of a safetensors file; UserError for a damaged file, a pipe or a device.

    The library refuses a file unless its tensors cover every byte exactly once.
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
    """Read a UTF-8 file, with each line end as a line feed; UserError for other contents or too large a file."""
    try:
        return io.TextIOWrapper(io.BytesIO(_content(path, LARGEST_JSON)), encoding="utf-8").read()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error})") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file; UserError for other contents or a file that is too large."""
    content = _content(path, LARGEST_JSON)
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error})") from None

    if not isinstance(values, dict):
        raise UserError(f"{path} must contain a JSON object, got {type(values).__name__}")
    return values


def read_yaml(path: Path, *, trusted: bool = False) -> dict[str, Any]:
    """Read the mapping in a YAML file; an empty dict for an empty file.

    Unless the file is trusted, its values must be plain, and it must have no aliases: a few aliases can expand to
    terabytes.

    Raises UserError for other contents or a file that is too large.
    """
    text = _content(path, LARGEST_YAML)
    loader = yaml.SafeLoader if SURROGATE.search(text) else LOADER

    try:
        if not trusted:
            _check_events(yaml.parse(text, Loader=loader))
        tree = yaml.load(text, Loader=loader) or {}
        if not isinstance(tree, dict):
            raise ValueError("it has no keys")
        odd = [value for _, value in nodes(tree) if type(value) not in (*PLAIN, dict, list)]
        if not trusted and odd:
            raise ValueError(f"it contains a {type(odd[0]).__name__}")
    except Exception as error:  # of any class, because PyYAML converts dates and numbers
        reason = " ".join(str(error).split())
        raise UserError(f"{path} must be YAML with keys and plain values ({reason})") from None
    return tree


def read_pickle(path: Path) -> Any:
    """Read a pickle of plain values; pickle.UnpicklingError if it names a class or a function.

    Raises ValueError for a length beyond the end of the file, or a memo index beyond its size, because Python would
    first allocate memory for it.
    """
    content = _content(path, LARGEST_JSON)
    for operation, argument, _ in pickletools.genops(content):
        is_memo = isinstance(argument, int) and operation.name.endswith("PUT")
        if is_memo and argument > len(content):
            raise ValueError(f"memo index {argument} is larger than the file")
    return _PlainUnpickler(io.BytesIO(content)).load()


def targets(entries: Iterable[tuple[tuple, object]]) -> set[tuple[str, str]]:
    """Return what Hydra would import and call to build a configuration: the place of each _target_, and its name.

    check_targets compares full names: torch.hub.load runs code, although torch is a known package. It also compares
    places: gptmini.data.PublishedText as a callback would download a text into any folder.

    Args:
        entries: the configuration's entries from nodes or known_nodes.

    Returns pairs such as ("callbacks.scalars", "gptmini.training.Scalars").
    """
    return {(_dotted(keys[:-1]), str(value)) for keys, value in entries if keys[-1] == "_target_"}


def known_nodes(folder: Path) -> Iterator[tuple[tuple, object]]:
    """Yield the entries, as from nodes, of every YAML file in a folder of trusted configurations."""
    for file in folder.rglob("*.yaml"):
        group = file.parent.relative_to(folder).parts
        # The keys of a root configuration or an experiment start at the root. The keys of a group are below the group.
        above = () if group == ("experiment",) else group
        yield from nodes(read_yaml(file, trusted=True), above)


def check_targets(tree: dict[str, Any], allowed: Collection[tuple[str, str]], path: Path) -> None:
    """Raise UserError if Hydra would call anything that is not allowed when it builds a stored configuration.

    Args:
        tree: the stored configuration, without the parts that the command line replaces.
        allowed: places and names of classes and functions, as targets returns them.
        path: the file, for the error message.
    """
    for keys, value in nodes(tree):
        part, key = _dotted(keys[:-1]), keys[-1]
        # A key with a dot in it would look like a key of another part.
        if "." in str(key):
            raise UserError(f"{path} must have keys without dots, got {key!r}")
        # An interpolation is computed when it is read: ${oc.env:NAME} reads an environment variable.
        if isinstance(value, str) and "${" in value:
            raise UserError(f"{path} must contain only plain values, got {value!r}")
        if key == "_target_" and (part, str(value)) not in allowed:
            raise UserError(
                f"{path} names {value} for {part}, but no trusted configuration does; "
                f"if this class is yours, repeat +{part}=... or --config-dir"
            )


def nodes(tree: object, above: tuple = ()) -> Iterator[tuple[tuple, object]]:
    """Yield the path of keys and the value of each entry in a tree of dicts and lists, parents before children."""
    entries: Any = ()
    if isinstance(tree, dict):
        entries = tree.items()
    elif isinstance(tree, list):
        entries = enumerate(tree)

    for key, value in entries:
        yield (*above, key), value
        yield from nodes(value, (*above, key))


def _dotted(keys: tuple) -> str:
    """Return a path of keys as a dotted key."""
    return ".".join(str(key) for key in keys)


def check_plain_folder(folder: Path) -> None:
    """Raise UserError unless a folder contains, at any depth, only regular files and folders.

    Writing through a link could change any of the user's files, and reading a pipe could block for ever. Links inside
    the folder wandb are allowed: Weights & Biases makes them, and gptmini writes nothing there.
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
    """Reads a pickle of plain values, and refuses a pickle that would import anything."""

    def find_class(self, module: str, name: str) -> type:
        raise pickle.UnpicklingError(f"expected only plain values, got {module}.{name}")


def file_size(path: Path, most: float = math.inf) -> int:
    """Return the size of a file in bytes. A link is followed: the cache of the Hugging Face hub contains links.

    Raises UserError for more than `most` bytes. Raises UserError for a pipe or a device, because they could block a
    reader.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path} is not a regular file")
    if status.st_size > most:
        raise UserError(f"{path} must have at most {most:,} bytes, got {status.st_size:,}")
    return status.st_size


def _content(path: Path, most: int) -> bytes:
    """Read the bytes of a file; UserError as for file_size."""
    size = file_size(path, most)
    with path.open("rb") as file:
        return file.read(size)


def _check_events(events: "Iterable[yaml.Event]") -> None:
    """Raise ValueError for YAML with aliases, or nested so deeply that libyaml would overflow the stack."""
    depth = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it has aliases")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST_YAML:
            raise ValueError(f"it is nested deeper than {DEEPEST_YAML} levels")


def _check_archive(path: Path, *, checked: bool) -> None:
    """Raise UserError unless path is a zip file as torch writes it; with `checked`, verify every CRC-32.

    Its entries are not compressed and have no DOS attributes. For an entry with the attribute of a folder, torch would
    read no bytes and leave a tensor's memory uninitialized.
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
            f"{path} is not a checkpoint, or it is truncated or damaged ({error})"
        ) from None

    if odd:
        raise UserError(f"{path} is not a checkpoint: torch does not write entries like {odd[0]}")
    if damaged is not None:
        raise UserError(f"{path} is damaged: the CRC-32 of {damaged} does not match")


def _check_memory(contents: object, size: int, path: Path) -> None:
    """Raise UserError if a file of `size` bytes contains more values and characters than bytes, or a non-dense tensor.

    A pickle can name one long string, one list of lists, or one tensor any number of times.
    """
    import torch

    n_values_left = size
    tensor_bytes_left = 2 * size  # a tied weight has two names
    waiting = [contents]
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            # A tensor of stride 0 repeats one number. A copy of it could take gigabytes.
            has_memory = value.layout is torch.strided and value.device.type != "meta"
            is_plain = has_memory and not value.is_nested
            if not is_plain or value.nbytes > value.untyped_storage().nbytes():
                raise UserError(f"{path} must contain only dense tensors with all their values")
            tensor_bytes_left -= value.nbytes
        elif isinstance(value, str | bytes | dict | list | tuple | set):
            n_values_left -= len(value)
        if n_values_left < 0 or tensor_bytes_left < 0:
            raise UserError(f"{path} repeats values: they exceed the file's {size:,} bytes")

        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list | tuple | set):
            waiting += value
