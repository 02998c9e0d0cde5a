"""Files that are written whole or not at all: beside their name, flushed to disk, then renamed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of path when the block ends: a reader sees the old file or the new one.

    When the block raises, path stays as it was and the new file is removed. The bytes are flushed to disk before the
    file takes its place; flush_folder makes the renaming survive a power cut too.
    """
    temporary = temporary_beside(path)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def replace_by_link(source: Path, target: Path) -> None:
    """Make target another name of source's file, in one step for whoever looks; OSError leaves target as it was."""
    temporary = temporary_beside(target)
    temporary.unlink(missing_ok=True)
    os.link(source, temporary)
    try:
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)  # a rename does nothing where both names already are of one file
    flush_folder(target.parent)


def flush_folder(folder: Path) -> None:
    """Make renames and links inside the folder survive a power cut."""
    if os.name != "posix":
        return  # other systems have no handle on a folder to flush

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary_beside(path: Path) -> Path:
    """The name under which this process writes a file or a folder before it takes the name path."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")
