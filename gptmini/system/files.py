"""Write files and folders atomically. While a file or a folder is written, it has a temporary name."""

import os
import re
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

PACKAGE = Path(__file__).resolve().parents[1]
# The folder of gptmini's configuration files. In an installed package, it is inside the package. In a clone of the
# repository, it is next to the package.
CONFIGS = PACKAGE / "configs" if (PACKAGE / "configs").is_dir() else PACKAGE.parent / "configs"

# Number of open files that a process needs for libraries, logs and checkpoints, in addition to data files.
OTHER_FILES = 256


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the name of a file or folder to an OSError in the block, because errors of a write name no file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` when the block ends. A reader sees either the old file or the new file.

    The bytes are flushed to disk before the rename. If the block raises, the old file is unchanged.
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
    """Create a folder that is renamed to `path` when the block ends, so that `path` is complete or absent.

    Yields the folder under its temporary name. The block must flush its files to disk. Raises OSError if `path` is not
    empty.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        yield temporary
        # mkdtemp creates a folder that only its owner can read. On vfat, such folders do not exist, and only the owner
        # of the drive may use chmod.
        with suppress(PermissionError):
            temporary.chmod(0o755)
        if path.is_dir():
            path.rmdir()  # some systems do not rename onto an empty folder
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace_by_symlink(destination: str, link: Path) -> None:
    """Make `link` a symbolic link to `destination`. A reader sees either the old link or the new link."""
    temporary = temporary_beside(link)
    try:
        temporary.symlink_to(destination)
        temporary.replace(link)
    finally:
        temporary.unlink(missing_ok=True)


def exists(name: str) -> bool:
    """Whether a name is the path of a file or a folder. Path.exists would raise an error for a long name."""
    return os.path.exists(name)  # noqa: PTH110


def is_address(text: str) -> bool:
    """Whether a text is an address such as https://host/book.txt."""
    return re.match(r"[a-z][a-z0-9+.-]*://", text, flags=re.IGNORECASE) is not None


def name_of_address(address: str) -> str:
    """Return a file name with the extensions of an address, such as book.txt.gz for https://host/book.txt.gz?id=1."""
    path = re.split(r"[?#]", address, maxsplit=1)[0].rstrip("/")
    name = re.sub(r"[^\w.-]+", "-", unquote(path.rpartition("/")[2]))
    # The end of the name has the extensions. A character has up to four bytes, and a file name at most 255.
    return name[-50:].lstrip(".-") or "text"


def expand_home(name: str) -> str:
    """Replace a leading ~ by the home folder. Path.expanduser would raise an error for an unknown ~user."""
    return os.path.expanduser(name)  # noqa: PTH111


def encodable(text: str) -> str:
    """Replace lone surrogates, which Python stores for bytes of a file name that are not UTF-8, by escape sequences."""
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


def flush_file(file: BinaryIO) -> None:
    """Flush the written bytes of a file to disk, so that these bytes survive a power failure."""
    file.flush()
    os.fsync(file.fileno())


def temporary_beside(path: Path) -> Path:
    """Return a new hidden name next to `path`. Open it in mode "xb", which fails if somebody has put a link there."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def is_temporary(path: Path) -> bool:
    """Whether a file or a folder has a name of temporary_beside or new_folder."""
    return path.name.startswith(".") and path.name.endswith(".tmp")


def allow_open_files(number: int) -> int:
    """Raise the limit of open files to `number` + OTHER_FILES if possible. Return the number that this allows."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return number

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = number + OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    if soft != resource.RLIM_INFINITY and limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit - OTHER_FILES


def install_command(extra: str) -> str:
    """Return the command that installs an optional extra, such as `sweep`. In a clone, keep the package editable."""
    if CONFIGS.is_relative_to(PACKAGE):
        return f"pip install 'gptmini[{extra}]'"
    clone = PACKAGE.parent
    place = "." if clone == Path.cwd() else clone
    return f"pip install -e {shlex.quote(f'{place}[{extra}]')}"
