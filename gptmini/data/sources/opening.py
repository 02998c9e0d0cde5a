"""Files as streams of bytes, unpacked where their names say that they are packed."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, NamedTuple, cast

from gptmini.data.sources.formats import format_of
from gptmini.user_error import UserError

# What the standard library raises for a packed file that ends too soon or is damaged.
DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


class Opened(NamedTuple):
    """A file that is open for reading."""

    stream: BinaryIO  # the bytes, unpacked
    # Tells how many bytes of the file, as it lies on disk, have been read.
    position: Callable[[], int]


@contextmanager
def opened(file: Path) -> Iterator[Opened]:
    """Open a file to read its bytes, unpacked.

    Raises UserError: the file is packed and ends too soon or is damaged, or it is packed by Zstandard and pyarrow is
    not installed.
    """
    packing = format_of(file).packing
    raw = _open(file, packing)
    size = file.stat().st_size

    try:
        with raw, _unpacked(raw, packing) as stream:
            yield Opened(stream, lambda: size if raw.closed else raw.tell())
    except DAMAGE as error:
        raise UserError(
            f"{file} must be a whole {packing} file, got one that ends too soon or is damaged ({error})"
        ) from None
    except OSError as error:
        # The libraries raise a bare OSError, without the number of a system's error, for damage that they find.
        if packing and error.errno is None:
            raise UserError(
                f"{file} must be a whole {packing} file, got a damaged one ({error})"
            ) from None
        raise


def _open(file: Path, packing: str) -> BinaryIO:
    """Open a file as the library that unpacks it wants it."""
    if packing == ".zst":
        return need_pyarrow(file).OSFile(str(file))
    return file.open("rb")


def _unpacked(raw: BinaryIO, packing: str) -> BinaryIO:
    """What a file holds whose bytes are packed."""
    if packing == ".gz":
        return cast(BinaryIO, gzip.open(raw, "rb"))
    if packing == ".bz2":
        return cast(BinaryIO, bz2.open(raw, "rb"))
    if packing == ".xz":
        return cast(BinaryIO, lzma.open(raw, "rb"))
    if packing == ".zst":
        import pyarrow

        return pyarrow.CompressedInputStream(raw, "zstd")
    return raw


def need_pyarrow(file: Path) -> ModuleType:
    """Import pyarrow; UserError, with the command that installs it, where it is not installed."""
    try:
        import pyarrow
    except ImportError:
        raise UserError(
            f"{file} is read by pyarrow, which is not installed: pip install 'gptmini[data]'"
        ) from None
    return pyarrow
