"""Files and folders that are written whole or not at all: beside their name, flushed to disk, then renamed."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

ABANDONED = 3600  # seconds without a byte written, after which a folder that is being made has no maker any more


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
            flush_file(file)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Make a folder that takes the name path when the block ends: it is complete or not there.

    Yields the folder under its temporary name. If another process has made path meanwhile, that one stays. When the
    block raises, nothing is left; what a killed process left is removed by the next one, an hour later.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        with suppress(FileNotFoundError):  # its process has just finished
            newest = max(entry.stat().st_mtime for entry in (left, *left.iterdir()))
            if time.time() - newest > ABANDONED:
                shutil.rmtree(left)

    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        yield temporary
        temporary.chmod(0o755)  # mkdtemp's folder is its owner's alone
        try:
            temporary.rename(path)
        except OSError:
            if not path.exists():  # otherwise another process was faster, and made the same
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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


def replace_by_symlink(destination: str, link: Path) -> None:
    """Make link a symbolic link to destination, in one step for whoever looks."""
    temporary = temporary_beside(link)
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(destination)
    temporary.replace(link)


def flush_file(file: BinaryIO) -> None:
    """Make what was written to a file survive a power cut."""
    file.flush()
    os.fsync(file.fileno())


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
