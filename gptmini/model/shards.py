"""A checkpoint too large for one file: its tensors as safetensors shards in a folder, the rest as JSON in a file.

The file has the checkpoint's name and is small. It is written last, and names the folder, so that a checkpoint is there
whole or not at all, and several checkpoints of one step share a folder. Nothing in file or folder is code.

The tensors are named by the way that leads to them: state_dict.<name>, optimizer_states.0.state.<name>.<moment>. Each
process writes its share of them, so that no process holds them all.
"""

import json
import math
import secrets
import shutil
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gptmini.checks import UserError
from gptmini.files import flush_file, flush_folder, replace_by_link, replacing

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


def write_shards(checkpoint: dict, path: Path, *, previous: Path | None = None) -> None:
    """Write a checkpoint whole or not at all: its tensors into a new folder, then the file that names the folder.

    Collective where tensors are divided among processes, which must all see the folder. An old file at path is called
    previous from then on. Folders that no checkpoint names any more are removed.

    Raises OSError: no room, no permission; the old file is as it was. In a group every process raises it.
    """
    tensors: dict[str, Tensor] = {}
    rest = _without_tensors(checkpoint, "", tensors)
    json.dumps(rest)  # an error must come here, where no process waits for another one
    is_divided = any(hasattr(tensor, "placements") for tensor in tensors.values())
    is_writer = not is_divided or dist.get_rank() == 0

    name = f"step-{checkpoint['global_step']}-{secrets.token_hex(4)}"
    if is_divided:
        names = [name]
        dist.broadcast_object_list(names)
        name = names[0]
    folder = path.with_name(f"{name}{SUFFIX}")
    temporary = path.with_name(f".{name}.tmp")

    error = None
    try:
        _write_tensors(tensors, temporary, is_divided=is_divided)
        checksums = _checksums_of(temporary, is_divided=is_divided)
        if is_writer:
            contents = rest | {FOLDER: folder.name, CHECKSUMS: checksums}
            error = _name(temporary, folder, contents, path, previous)
    finally:
        if is_writer:
            shutil.rmtree(temporary, ignore_errors=True)

    # Nobody goes on before the first process has given the files their names.
    errors = [error]
    if is_divided:
        dist.broadcast_object_list(errors)
    if errors[0] is not None:
        raise errors[0]
    if is_writer:
        remove_unnamed(path.parent)


def _name(
    temporary: Path, folder: Path, contents: dict, path: Path, previous: Path | None
) -> OSError | None:
    """Give a new folder of shards its name, and write the file that names it; return what went wrong."""
    try:
        flush_folder(temporary)
        temporary.rename(folder)
        flush_folder(path.parent)
        with replacing(path) as file:
            file.write(json.dumps(contents).encode())
            flush_file(file)
            if previous is not None and path.exists():
                replace_by_link(path, previous)
        flush_folder(path.parent)
    except OSError as error:
        return error
    return None


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
        with _telling_damage(folder), _raising_causes(folder):
            dcp.load(wanted, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)


def check_shards(path: Path, contents: Mapping[str, Any]) -> None:
    """Raise UserError unless the shards of a checkpoint are all there, with the checksums in its file."""
    folder = path.with_name(contents[FOLDER])
    for name, checksum in contents[CHECKSUMS].items():
        shard = folder / Path(name).name
        if not shard.is_file():
            raise UserError(f"{path} is damaged: {shard.relative_to(path.parent)} is missing")
        if _checksum(shard) != checksum:
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


def remove_unnamed(folder: Path) -> None:
    """Remove the folders of shards that no checkpoint in a folder names, as a killed process leaves them."""
    named = set()
    for path in folder.glob("*.ckpt"):
        try:
            if is_of_shards(path):
                named.add(read_rest(path)[FOLDER])
        except (UserError, OSError):
            # A damaged file may have named any of them. One that was set aside nobody goes on from.
            if not path.name.startswith("set-aside-"):
                return
    for shards in folder.glob(f"*{SUFFIX}"):
        if shards.is_dir() and shards.name not in named:
            shutil.rmtree(shards, ignore_errors=True)


def _write_tensors(tensors: dict[str, Tensor], folder: Path, *, is_divided: bool) -> None:
    """Write each process's share of tensors into a new folder; OSError if any process could not."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    with _raising_causes(folder):
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        dcp.save(tensors, storage_writer=writer, no_dist=not is_divided)


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
def _raising_causes(folder: Path) -> Iterator[None]:
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


def _checksums_of(folder: Path, *, is_divided: bool) -> dict[str, int]:
    """The CRC-32 of each shard, by its file's name; collective where each process has written its own shard.

    Raises OSError: a shard cannot be read; in a group every process raises it.
    """
    if not is_divided:
        return {shard.name: _checksum(shard) for shard in folder.glob("*.safetensors")}

    # torch numbers shards by the processes that write them, from 1.
    own = {}
    error = None
    try:
        for shard in folder.glob(f"shard-{dist.get_rank() + 1:05d}-*.safetensors"):
            own[shard.name] = _checksum(shard)
    except OSError as raised:
        error = raised

    found: list[tuple[dict[str, int], OSError | None]] = [({}, None)] * dist.get_world_size()
    dist.all_gather_object(found, (own, error))
    for _, of_other in found:
        if of_other is not None:
            raise of_other
    return {name: checksum for each, _ in found for name, checksum in each.items()}


def _checksum(path: Path) -> int:
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


def _without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A value with a mention in the place of each tensor, which tensors gains by its name."""
    if isinstance(value, Tensor):
        if name in tensors:
            raise UserError(f"two tensors of the checkpoint have the name {name}")
        tensors[name] = value.detach()
        return {TENSOR: name}

    if isinstance(value, dict):
        if not all(type(key) is str for key in value):
            raise UserError(f"a checkpoint of shards needs texts for keys, got others in {name}")
        return {
            key: _without_tensors(inner, f"{name}.{key}".removeprefix("."), tensors)
            for key, inner in value.items()
        }

    if isinstance(value, list | tuple):
        return [
            _without_tensors(inner, f"{name}.{index}", tensors) for index, inner in enumerate(value)
        ]
    return value


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
