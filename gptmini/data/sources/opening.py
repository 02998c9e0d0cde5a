"""Files as streams of bytes, unpacked where their names say that they are packed."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, cast

from gptmini.checks import UserError
from gptmini.data.sources.formats import format_of

# What the standard library raises for a packed file that ends too soon or is damaged.
DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


@contextmanager
def opened(file: Path) -> Iterator[BinaryIO]:
    """Open a file to read its bytes, unpacked.

    Raises UserError: the file is packed and ends too soon or is damaged, or it is packed by Zstandard and pyarrow is
    not installed.
    """
    packing = format_of(file).packing
    stream = _open(file, packing)

    try:
        with stream:
            yield stream
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
    """Open a file as its packing asks for."""
    if packing == ".gz":
        return cast(BinaryIO, gzip.open(file, "rb"))
    if packing == ".bz2":
        return cast(BinaryIO, bz2.open(file, "rb"))
    if packing == ".xz":
        return cast(BinaryIO, lzma.open(file, "rb"))
    if packing == ".zst":
        pyarrow = need_pyarrow(file)
        return pyarrow.input_stream(str(file), compression="zstd")
    return file.open("rb")


def need_pyarrow(file: Path) -> ModuleType:
    """Import pyarrow; UserError, with the command that installs it, where it is not installed."""
    try:
        import pyarrow
    except ImportError:
        raise UserError(
            f"{file} is read by pyarrow, which is not installed: pip install 'gptmini[data]'"
        ) from None
    return pyarrow
