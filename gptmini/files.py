"""Files and folders that are written whole or not at all, under a temporary name."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PACKAGE = Path(__file__).resolve().parent
# The folder of gptmini's configuration files: inside an installed package, and beside the package in a clone.
CONFIGS = PACKAGE / "configs" if (PACKAGE / "configs").is_dir() else PACKAGE.parent / "configs"

OTHER_FILES = 256  # that a process keeps open: libraries, logs, checkpoints


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an OSError of the block the name of a file or folder, if the system has given it none.

    The system names what cannot be opened or made, but not what cannot be written or flushed.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that takes the name path when the block ends: a reader sees the old file or the new one.

    The bytes are flushed to disk before the new file takes its name. When the block raises, the old file stays as it
    was and the new one is removed.
    """
    temporary = temporary_beside(path)
    try:
        with naming(path), temporary.open("xb") as file:
            yield file
            flush_file(file)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Make a folder that takes the name path when the block ends: the folder is complete or absent.

    Yields the folder under its temporary name. When the block raises, the new folder is removed. The block itself
    flushes the files to disk. Raises OSError: there is something else than an empty folder at path.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        yield temporary
        # mkdtemp makes a folder that only its owner can read. vfat refuses the change to anyone but the owner of the
        # drive, and has no folders that only their owner can read.
        with suppress(PermissionError):
            temporary.chmod(0o755)
        if path.is_dir():
            path.rmdir()  # empty, and free for the new folder only on some systems
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace_by_symlink(destination: str, link: Path) -> None:
    """Make link a symbolic link to destination: a reader sees the old link or the new one."""
    temporary = temporary_beside(link)
    try:
        temporary.symlink_to(destination)
        temporary.replace(link)
    finally:
        temporary.unlink(missing_ok=True)


def encodable(text: str) -> str:
    """Text without lone surrogates, which UTF-8 does not have, as escapes.

    Python keeps a byte of a file name that is not UTF-8 as such a surrogate, U+DC80 to U+DCFF.
    """
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


def flush_file(file: BinaryIO) -> None:
    """Flush the bytes written to a file to disk, so that they survive a power cut."""
    file.flush()
    os.fsync(file.fileno())


def temporary_beside(path: Path) -> Path:
    """Return a new hidden name under which a file is written before the file takes the name path.

    The name is random, so that nobody can have put a link there that leads elsewhere. Open it with "xb", which refuses
    a name that exists.
    """
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def allow_open_files(number: int) -> None:
    """Let this process keep so many files open besides others, as far as the system lets a process ask for it."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
