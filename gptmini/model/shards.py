"""A checkpoint too large for one file: its tensors as safetensors shards in a folder, the rest as JSON in a file.

The file has the checkpoint's name and is small. It is written last, and names the folder, so that a checkpoint is there
whole or not at all, and several checkpoints of one step share a folder. Nothing in file or folder is code.

The tensors are named by the way that leads to them: state_dict.<name>, optimizer_states.0.state.<name>.<moment>. Each
process writes its share of them, so that no process holds them all.

This file reads such checkpoints, and gptmini/model/shard_writing.py writes them.
"""

import json
import math
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gptmini.user_error import UserError

SUFFIX = ".shards"  # of the folders beside the files
TENSOR = "$tensor"  # the key of a mapping in the JSON that stands for a tensor
FOLDER = "shards"  # the key of the folder's name
CHECKSUMS = "checksums"  # the key of the CRC-32 of each shard, by its file's name
BLOCK = 2**24  # bytes that a checksum is computed of at once


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint that is still in its folder of shards; read_stored reads it, or a share of it."""

    folder: Path
    name: str  # under which the folder has it
    shape: torch.Size
    dtype: torch.dtype


def is_of_shards(path: Path) -> bool:
    """Whether a checkpoint's tensors are shards in a folder: its file is JSON, where others are zip files."""
    with path.open("rb") as file:
        return file.read(1) == b"{"


def read_rest(path: Path) -> dict:
    """The JSON of a checkpoint whose tensors are shards; UserError for anything else."""
    try:
        contents = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        contents = None
    if not isinstance(contents, dict):
        raise UserError(f"{path} is damaged: it is no JSON")

    name = contents.get(FOLDER)
    checksums = contents.get(CHECKSUMS)
    is_plain = type(name) is str and Path(name).name == name and name.endswith(SUFFIX)
    if not is_plain or not isinstance(checksums, dict):
        raise UserError(f"{path} is damaged: it names no folder of shards")
    if not path.with_name(name).is_dir():
        raise UserError(f"{path} lacks the folder {name}, which holds its tensors")
    return contents


def read_shards(path: Path, *, only_weights: bool = False, is_checked: bool = False) -> dict:
    """Read a checkpoint onto the CPU, whatever number of processes has written it.

    The optimizer's state, which is larger than the weights, is left where it is: its tensors are StoredTensor, but for
    single numbers.

    Args:
        path: the checkpoint's file.
        only_weights: whether the optimizer's state is left out.
        is_checked: whether the checksums were compared before, as by another process of the run.

    Raises UserError: damage, or a shard that is missing.
    """
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    contents = read_rest(path)
    if not is_checked:
        check_shards(path, contents)
    folder = path.with_name(contents.pop(FOLDER))
    contents.pop(CHECKSUMS)
    if only_weights:
        contents["optimizer_states"] = []

    later = set(_names_in(contents.get("optimizer_states")))
    with _telling_damage(folder):
        known = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
        tensors: dict[str, Tensor | StoredTensor] = {}
        rooms = []
        for name in _names_in(contents):
            stored = _described(known[name], folder, name)
            if name in later and stored.shape:
                tensors[name] = stored
            else:
                room = torch.zeros(stored.shape, dtype=stored.dtype)
                tensors[name] = room
                rooms.append((stored, room))

    read_stored(rooms)
    return _with_tensors(contents, tensors)


def read_stored(rooms: Sequence[tuple[StoredTensor, Tensor]]) -> None:
    """Read tensors of a folder of shards into tensors of their shapes.

    Where such a tensor is divided among processes, each reads the share that it holds.
    Raises UserError: the folder does not hold them.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    for folder in {stored.folder for stored, _ in rooms}:
        wanted = {stored.name: room for stored, room in rooms if stored.folder == folder}
        with _telling_damage(folder), raising_causes(folder):
            dcp.load(wanted, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)


def check_shards(path: Path, contents: Mapping[str, Any]) -> None:
    """Raise UserError unless the shards of a checkpoint are all there, with the checksums in its file."""
    folder = path.with_name(contents[FOLDER])
    for name, checksum in contents[CHECKSUMS].items():
        shard = folder / Path(name).name
        if not shard.is_file():
            raise UserError(f"{path} is damaged: {shard.relative_to(path.parent)} is missing")
        if checksum_of(shard) != checksum:
            raise UserError(
                f"{path} is damaged: the CRC-32 of {shard.relative_to(path.parent)} does not match"
            )

    known = {Path(name).name for name in contents[CHECKSUMS]}
    shards = folder.glob("*.safetensors")
    strange = sorted(shard.name for shard in shards if shard.name not in known)
    if strange:
        raise UserError(
            f"{path} is damaged: {folder.name} holds {strange[0]}, which is not its own"
        )


@contextmanager
def _telling_damage(folder: Path) -> Iterator[None]:
    """Make a UserError of what safetensors and torch raise, of any class, for a folder of unknown origin."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"{folder} is damaged: it does not hold the tensors of its checkpoint ({type(error).__name__})"
        ) from error


@contextmanager
def raising_causes(folder: Path) -> Iterator[None]:
    """Raise what went wrong in any process in the place of torch's CheckpointException, which is no Exception.

    Torch's hint that a process by itself saves and loads by itself is silenced.
    """
    from torch.distributed.checkpoint.api import CheckpointException

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            yield
        except CheckpointException as failure:
            causes = [error for error, _ in failure.failures.values()]
            for cause in causes:
                if isinstance(cause, OSError):
                    raise OSError(cause.errno, cause.strerror, str(folder)) from failure
            raise causes[0] from failure


def checksum_of(path: Path) -> int:
    """The CRC-32 of a file."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _described(description: Any, folder: Path, name: str) -> StoredTensor:
    """A stored tensor as torch describes it; its shards must hold as many numbers as it has."""
    n_stored = sum(math.prod(chunk.sizes) for chunk in description.chunks)
    if n_stored != math.prod(description.size):
        raise ValueError("the shards of a tensor overlap, or leave a part of it out")
    return StoredTensor(folder, name, torch.Size(description.size), description.properties.dtype)


def _is_mention(value: Any) -> bool:
    """Whether a value stands for a tensor."""
    return isinstance(value, dict) and value.keys() == {TENSOR} and type(value[TENSOR]) is str


def _names_in(value: Any) -> Iterator[str]:
    """The names of the tensors that a value mentions."""
    if _is_mention(value):
        yield value[TENSOR]
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _names_in(inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inner in value:
            yield from _names_in(inner)


def _with_tensors(value: Any, tensors: Mapping[str, Tensor | StoredTensor]) -> Any:
    """A value with tensors in the place of their mentions."""
    if _is_mention(value):
        return tensors[value[TENSOR]]
    if isinstance(value, dict):
        return {key: _with_tensors(inner, tensors) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_tensors(inner, tensors) for inner in value]
    return value
