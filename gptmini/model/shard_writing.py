"""How a checkpoint of shards is written: each process its share, the small file last, and what is left over removed.

gptmini/model/shards.py describes the format, and reads it.
"""

import json
import secrets
import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from gptmini.files import flush_file, flush_folder, replace_by_link, replacing
from gptmini.model.shards import (
    CHECKSUMS,
    FOLDER,
    SUFFIX,
    TENSOR,
    checksum_of,
    is_of_shards,
    raising_causes,
    read_rest,
)
from gptmini.user_error import UserError


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

    with raising_causes(folder):
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        dcp.save(tensors, storage_writer=writer, no_dist=not is_divided)


def _checksums_of(folder: Path, *, is_divided: bool) -> dict[str, int]:
    """The CRC-32 of each shard, by its file's name; collective where each process has written its own shard.

    Raises OSError: a shard cannot be read; in a group every process raises it.
    """
    if not is_divided:
        return {shard.name: checksum_of(shard) for shard in folder.glob("*.safetensors")}

    # torch numbers shards by the processes that write them, from 1.
    own = {}
    error = None
    try:
        for shard in folder.glob(f"shard-{dist.get_rank() + 1:05d}-*.safetensors"):
            own[shard.name] = checksum_of(shard)
    except OSError as raised:
        error = raised

    found: list[tuple[dict[str, int], OSError | None]] = [({}, None)] * dist.get_world_size()
    dist.all_gather_object(found, (own, error))
    for _, of_other in found:
        if of_other is not None:
            raise of_other
    return {name: checksum for each, _ in found for name, checksum in each.items()}


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
