"""Reading files that may come from somebody else: nothing in them runs, and no pipe or device is read.

Such files are checkpoints, exported models, prepared tokens, and the configuration of a run that is resumed.
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
# The escape of a lone surrogate, by which a file name that is not UTF-8 is written. libyaml's parser refuses it.
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

# Bytes. The largest published vocabularies take half of it; as empty lists it takes 1.6 GB of memory.
LARGEST_JSON = 2**26
LARGEST_YAML = 2**20  # bytes; the configuration of a run takes a hundredth of it
DEEPEST_YAML = 100  # dicts and lists in each other; the configuration of a run has five
PLAIN = (str, int, float, bool, type(None))  # types of the values of a configuration


def read_tensors(path: Path, *, mapped: bool = False, checked: bool = True) -> dict[str, Any]:
    """The dict of tensors and plain values that torch.save wrote into a file, on the CPU.

    Args:
        path: a zip file, as torch.save writes it.
        mapped: whether tensors stay in the file until they are used. The file must not change meanwhile.
        checked: whether the CRC-32 of every entry is compared.

    Returns an empty dict where the file holds something else than a dict.
    Raises UserError: damage, pickled code, or values that take more room than the file has bytes.
    """
    import torch

    size = file_size(path)
    _check_archive(path, checked=checked)
    mapped = mapped and encodable(str(path)) == str(path)  # torch maps no other name
    try:
        contents = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # torch names no common class for what such a file can raise
        raise UserError(
            f"{path} must hold only tensors and plain data; "
            f"refused without running it ({type(error).__name__})"
        ) from error

    _check_room(contents, size, path)
    return contents if isinstance(contents, dict) else {}


def read_safetensors(path: Path) -> "dict[str, Tensor]":
    """The tensors of a safetensors file; UserError for damage, or for a pipe or a device.

    The library refuses a header unless its tensors fill the file, each byte once.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file_size(path)
    try:
        return load_file(path)
    except SafetensorError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} must be a whole safetensors file ({reason})") from None


def read_text(path: Path) -> str:
    """The text of a file in UTF-8, each line end as a line feed; UserError for anything else, or if it is too large."""
    try:
        return io.TextIOWrapper(io.BytesIO(_content(path, LARGEST_JSON)), encoding="utf-8").read()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} must be text in UTF-8 ({error})") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds; UserError for anything else, or for a file that is too large."""
    content = _content(path, LARGEST_JSON)
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} must be JSON ({error})") from None

    if not isinstance(values, dict):
        raise UserError(f"{path} must hold a JSON object, got {type(values).__name__}")
    return values


def read_yaml(path: Path, *, trusted: bool = False) -> dict[str, Any]:
    """The mapping that a YAML file holds; an empty dict for a file without content.

    Unless the file is trusted, its values must be plain, and it may have no aliases, a few of which can stand for
    terabytes.

    Raises UserError: anything else, or a file that is too large.
    """
    text = _content(path, LARGEST_YAML)
    loader = yaml.SafeLoader if SURROGATE.search(text) else LOADER

    try:
        if not trusted:
            _check_events(yaml.parse(text, Loader=loader))
        tree = yaml.load(text, Loader=loader) or {}
        if not isinstance(tree, dict):
            raise ValueError("it holds no keys")
        odd = [value for _, value in nodes(tree) if type(value) not in (*PLAIN, dict, list)]
        if not trusted and odd:
            raise ValueError(f"it holds a {type(odd[0]).__name__}")
    except Exception as error:  # of any class: PyYAML makes dates and numbers of whatever is there
        reason = " ".join(str(error).split())
        raise UserError(f"{path} must be YAML of keys and plain values ({reason})") from None
    return tree


def read_pickle(path: Path) -> Any:
    """What a pickle of plain values holds; pickle.UnpicklingError for one that asks for a class or a function.

    Raises ValueError: a length beyond the end of the file, or a memo beyond its size, for which Python would first
    allocate memory.
    """
    content = _content(path, LARGEST_JSON)
    for operation, argument, _ in pickletools.genops(content):
        is_memo = isinstance(argument, int) and operation.name.endswith("PUT")
        if is_memo and argument > len(content):
            raise ValueError(f"it has the memo {argument}")
    return _PlainUnpickler(io.BytesIO(content)).load()


def targets(entries: Iterable[tuple[tuple, object]]) -> set[tuple[str, str]]:
    """What Hydra would import and call to build a configuration: where a _target_ stands, and its name.

    Whole names are compared, because torch.hub.load runs code, though torch is known. Each is compared with its place,
    because gptmini.data.PublishedText in the place of a callback would download a text into any folder.

    Args:
        entries: of the configuration, as nodes or known_nodes gives them.

    Returns pairs such as ("callbacks.scalars", "gptmini.training.Scalars").
    """
    return {(_dotted(keys[:-1]), str(value)) for keys, value in entries if keys[-1] == "_target_"}


def known_nodes(folder: Path) -> Iterator[tuple[tuple, object]]:
    """The keys and values, as nodes gives them, of every YAML file in a folder of configurations that are trusted."""
    for file in folder.rglob("*.yaml"):
        group = file.parent.relative_to(folder).parts
        # The keys of a root configuration and of an experiment begin at the root; those of a group lie below it.
        above = () if group == ("experiment",) else group
        yield from nodes(read_yaml(file, trusted=True), above)


def check_targets(tree: dict[str, Any], allowed: Collection[tuple[str, str]], path: Path) -> None:
    """Raise UserError unless Hydra, when it builds a stored configuration, calls only what is allowed.

    Args:
        tree: the stored configuration, without the parts that the user types anew.
        allowed: places and names of classes and functions, as targets gives them.
        path: the file, for the error message.
    """
    for keys, value in nodes(tree):
        part, key = _dotted(keys[:-1]), keys[-1]
        # A key with a dot in it would look like a key of another part.
        if "." in str(key):
            raise UserError(f"{path} must have names without dots for keys, got {key!r}")
        # An interpolation is computed when it is read: ${oc.env:NAME} reads a variable of the environment.
        if isinstance(value, str) and "${" in value:
            raise UserError(f"{path} must hold plain values, got {value!r}")
        if key == "_target_" and (part, str(value)) not in allowed:
            raise UserError(
                f"{path} names {value} for {part}, which no configuration here does; "
                f"if it is yours, type +{part}=... or its --config-dir again"
            )


def nodes(tree: object, above: tuple = ()) -> Iterator[tuple[tuple, object]]:
    """The keys that lead to each value in a tree of dicts and lists, and the value, each dict before what is in it."""
    entries: Any = ()
    if isinstance(tree, dict):
        entries = tree.items()
    elif isinstance(tree, list):
        entries = enumerate(tree)

    for key, value in entries:
        yield (*above, key), value
        yield from nodes(value, (*above, key))


def _dotted(keys: tuple) -> str:
    """The keys that lead to a part of a configuration, as the user types them."""
    return ".".join(str(key) for key in keys)


def check_plain_folder(folder: Path) -> None:
    """Raise UserError unless everything in a folder, at any depth, is a regular file or a folder itself.

    Through a link, what is written in the folder could land in any file of the user, and a pipe keeps a reader waiting
    for ever. Links inside the folder wandb are allowed: Weights & Biases makes them, and nothing else is written there.
    """
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        is_of_wandb = stat.S_ISLNK(mode) and folder / "wandb" in path.parents
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode) and not is_of_wandb:
            raise UserError(
                f"{path} must be a file or folder itself, and it is a link, a pipe or a device; "
                "put what it stands for in its place"
            )


class _PlainUnpickler(pickle.Unpickler):
    """Reads a pickle of plain values, and refuses one that would import something."""

    def find_class(self, module: str, name: str) -> type:
        raise pickle.UnpicklingError(f"it must hold plain values, and asks for {module}.{name}")


def file_size(path: Path, most: float = math.inf) -> int:
    """Bytes of a file, or of the one that a link leads to, as in the cache of the Hugging Face hub.

    Raises UserError: a pipe or a device, which could be waited for, or more than `most` bytes.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path} must be a regular file, and is not")
    if status.st_size > most:
        raise UserError(f"{path} must have at most {most:,} bytes, got {status.st_size:,}")
    return status.st_size


def _content(path: Path, most: int) -> bytes:
    """The bytes of a file; UserError as for file_size."""
    size = file_size(path, most)
    with path.open("rb") as file:
        return file.read(size)


def _check_events(events: "Iterable[yaml.Event]") -> None:
    """Raise ValueError for YAML with aliases, or so deep that libyaml would overflow the stack of the process."""
    depth = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it has aliases")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST_YAML:
            raise ValueError(f"it is nested deeper than {DEEPEST_YAML}")


def _check_archive(path: Path, *, checked: bool) -> None:
    """Raise UserError unless path is a zip file as torch writes it; with checked, every CRC-32 is compared.

    Its entries are not compressed, and have no DOS attributes: for an entry that they mark as a folder, torch would
    read no bytes and leave a tensor's memory as it happened to be.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            odd = [
                e.filename for e in archive.infolist() if e.compress_type or e.external_attr & 255
            ]
            damaged = archive.testzip() if checked and not odd else None
    except PermissionError:
        raise
    except Exception as error:  # zipfile names no common class for a damaged directory
        raise UserError(
            f"{path} is not a checkpoint, or is cut short or damaged ({error})"
        ) from None

    if odd:
        raise UserError(
            f"{path} is not a checkpoint: torch does not write an entry as its {odd[0]}"
        )
    if damaged is not None:
        raise UserError(f"{path} is damaged: the CRC-32 of {damaged} does not match")


def _check_room(contents: object, size: int, path: Path) -> None:
    """Raise UserError if a file of `size` bytes holds more values and characters than bytes, or tensors not dense.

    A pickle can name one long text, one list of lists, or one tensor any number of times.
    """
    import torch

    room = size
    room_of_tensors = 2 * size  # a weight that is tied has two names
    waiting = [contents]
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            # A tensor of stride 0 repeats one number, and would take gigabytes once it is copied.
            has_memory = value.layout is torch.strided and value.device.type != "meta"
            is_plain = has_memory and not value.is_nested
            if not is_plain or value.nbytes > value.untyped_storage().nbytes():
                raise UserError(f"{path} must hold dense tensors, with every number of each")
            room_of_tensors -= value.nbytes
        elif isinstance(value, str | bytes | dict | list | tuple | set):
            room -= len(value)
        if room < 0 or room_of_tensors < 0:
            raise UserError(f"{path} must not repeat values beyond its own {size:,} bytes")

        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list | tuple | set):
            waiting += value
