"""Files as text: unpacked as their names say, and decoded."""

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, BinaryIO, NamedTuple, cast

from pydantic import AfterValidator

from gptmini.user_error import UserError

BLOCK = 2**20  # bytes that are read at once
LONGEST_LINE = 2**26  # characters of a line of records, which has to be held in memory whole
NAMES_ENCODING = "data.encoding names the encoding of a text"  # for a UserError
UNPACKERS: dict[str, Callable] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
PACKED = (*UNPACKERS, ".zst")
RECORDS = {  # endings of files of records, each with its kind
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
# Byte order marks, the longer first: that of UTF-32 begins with that of UTF-16.
MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}


def _known_encoding(name: str) -> str:
    """Return the name of an encoding; ValueError unless it is one of Python's for text."""
    try:
        codecs.getincrementaldecoder(name)().decode(b"", final=True)
        is_text = codecs.lookup(name)._is_text_encoding
    except LookupError:
        is_text = False
    if not is_text:
        raise ValueError("must be an encoding that Python knows, as utf-8 or cp1252")
    return name


# The name of an encoding, as Python has it.
Encoding = Annotated[str, AfterValidator(_known_encoding)]


class Format(NamedTuple):
    """How a file holds text, as the endings of its name say: a.jsonl.zst holds JSON records, packed by Zstandard."""

    kind: str  # text, for any ending that is not known, jsonl, csv, tsv or parquet
    packing: str  # an ending of PACKED, or empty


def format_of(file: Path) -> Format:
    """The format that the endings of a file's name say."""
    last = file.suffix.lower()
    return Format(
        kind=RECORDS.get(ending_of(file), "text"),
        packing=last if last in PACKED else "",
    )


def ending_of(file: Path) -> str:
    """The last ending of a file's name in small letters, or of a packed file the one before."""
    ending = file.suffix.lower()
    return Path(file.stem).suffix.lower() if ending in PACKED else ending


class Opened(NamedTuple):
    """A file of text that is open for reading, behind the byte order mark that it may begin with."""

    stream: "io.BufferedReader[Any]"  # the bytes, unpacked
    raw: Any  # the file as it lies on disk: raw.tell() is how many of its bytes have been read
    encoding: str
    offset: int  # bytes of the mark

    @property
    def is_utf8(self) -> bool:
        """Whether the bytes are the UTF-8 of the text."""
        return codecs.lookup(self.encoding).name == "utf-8"


@contextmanager
def opened(file: Path, encoding: str) -> Iterator[Opened]:
    """Open a file to read its text, in an encoding unless a byte order mark says another.

    Raises UserError: the file is packed and ends too soon or is damaged, or it is packed by Zstandard and pyarrow is
    not installed.
    """
    packing = format_of(file).packing
    # pyarrow is faster with a file of its own.
    raw = need_pyarrow(file).OSFile(str(file)) if packing == ".zst" else file.open("rb")

    try:
        with raw, _unpacked(raw, packing) as unpacked:
            stream = io.BufferedReader(cast(io.RawIOBase, unpacked), buffer_size=BLOCK)
            start = stream.peek(4)
            mark = next((mark for mark in MARKS if start.startswith(mark)), b"")
            stream.read(len(mark))
            yield Opened(stream, raw, MARKS.get(mark, encoding), len(mark))
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        # The libraries raise a bare OSError for damage; one of the system has a number.
        if getattr(error, "errno", None) is not None:
            raise
        raise UserError(
            f"{file} must be a whole {packing} file, got one that ends too soon or is damaged ({error})"
        ) from None


def _unpacked(raw: BinaryIO, packing: str) -> BinaryIO:
    """What a file holds whose bytes are packed."""
    if packing in UNPACKERS:
        return UNPACKERS[packing](raw, "rb")
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


def decoded(text: Opened, file: Path) -> Iterator[str]:
    """Read an open file as text, block by block.

    Raises UserError: bytes that are not in the encoding. A zero byte is none of a text in UTF-8, but every second byte
    of English in UTF-16.
    """
    decoder = codecs.getincrementaldecoder(text.encoding)()
    offset = text.offset  # of the block in the file
    line = 1  # in which the block begins

    while True:
        block = text.stream.read(BLOCK)
        try:
            if text.is_utf8 and 0 in block:
                place = block.index(0)
                raise UnicodeDecodeError("utf-8", block, place, place + 1, "zero byte")
            characters = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            # The object of the error is the block, behind the bytes of a character that the last block began.
            start = offset + len(block) - len(error.object) + error.start
            before = error.object[: error.start].decode(text.encoding, errors="replace")
            number = line + before.count("\n")
            raise UserError(
                f"{file} must be {text.encoding.upper()}, got byte 0x{error.object[error.start]:02x} at offset "
                f"{start:,}, in line {number:,}",
                for_training=NAMES_ENCODING,
            ) from None

        if characters:
            yield characters
        if not block:
            return
        offset += len(block)
        line += characters.count("\n")


class LineTooLongError(Exception):
    """A line, or a record of several lines, is longer than LONGEST_LINE characters. The whole line has been read."""


class Lines:
    """The lines of an open file, and the place of the next one.

    A byte that is not in the encoding becomes half of a surrogate pair, so that its record alone cannot be read.
    """

    def __init__(self, text: Opened, file: Path, *, newline: str) -> None:
        """Take a file; newline is \\n where lines end in that alone, and empty where \\r ends a line too."""
        self._wrapper = io.TextIOWrapper(
            text.stream,
            encoding=text.encoding,
            errors="surrogateescape",
            newline=newline,
        )
        self._file = file
        self._number = 1  # of the next line
        self._offset = text.offset  # of the next line in the file, unpacked

        self._length = 0  # characters of the present record that have been read
        # Lines behind the first one of a record, which may be read again, and their number of characters.
        self._kept = io.StringIO(newline="")
        self._n_kept = 0
        # Of the present record's second line: place in _kept, number, offset. None before it is read, and if it is too
        # long to be kept.
        self._second: tuple[int, int, int] | None = None

    def place(self) -> str:
        """How a message about the next line begins."""
        return f"{self._file}, line {self._number:,} (byte {self._offset:,}),"

    def begin_record(self) -> None:
        """Begin a record with the next line."""
        self._length = 0
        self._second = None
        if self._n_kept:
            place = self._kept.tell()
            # Drop what has been read for the last time; of a long rest, only now and then.
            if place == self._n_kept or place > LONGEST_LINE:
                self._kept = io.StringIO(self._kept.read(), newline="")
                self._n_kept -= place

    def go_back(self) -> None:
        """Go back to the second line of the present record, if it was read and is not too long."""
        if self._second is not None:
            place, self._number, self._offset = self._second
            self._kept.seek(place)

    def n_behind_first(self, test: Callable[[str], bool]) -> int:
        """Number of lines of the present record behind its first, if all of them pass a test, and else 0."""
        if self._second is None:
            return 0
        place, number, _ = self._second
        now = self._kept.tell()
        self._kept.seek(place)
        all_pass = all(test(self._kept.readline()) for _ in range(self._number - number))
        self._kept.seek(now)
        return self._number - number if all_pass else 0

    def __iter__(self) -> "Lines":
        """These lines, from the next one on."""
        return self

    def __next__(self) -> str:
        """The next line, with its end.

        Raises UserError: bytes that UTF-16 or UTF-32 does not have, behind which nothing can be read.
        """
        is_first = self._length == 0
        if not is_first and self._second is None:
            self._second = (self._kept.tell(), self._number, self._offset)

        line = self._kept.readline() if self._n_kept else ""
        if line:
            self._offset += self._n_bytes(line)
        else:
            line = self._read_whole()
            if not line:
                raise StopIteration
            if not is_first and len(line) <= LONGEST_LINE:
                self._n_kept += self._kept.write(line)
        self._number += 1

        self._length += len(line)
        if self._length > LONGEST_LINE:
            if len(line) > LONGEST_LINE:
                self._second = None
            what = "line" if is_first else "record"
            raise LineTooLongError(f"a {what} of more than {LONGEST_LINE:,} characters")
        return line

    def _read_whole(self) -> str:
        """Read the next line of the file to its end, and return it, or its first LONGEST_LINE + 1 characters."""
        line = self._read()
        rest = line
        while len(rest) > LONGEST_LINE and rest[-1] not in "\r\n":
            rest = self._read()
        return line

    def _read(self) -> str:
        """The next line of the file, or the first LONGEST_LINE + 1 characters of it; empty at the end of the file."""
        encoding = self._wrapper.encoding
        try:
            line = self._wrapper.readline(LONGEST_LINE + 1)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{self.place()} or a line behind it must be {encoding.upper()}, got {error.reason}",
                for_training=NAMES_ENCODING,
            ) from None
        self._offset += self._n_bytes(line)
        return line

    def _n_bytes(self, line: str) -> int:
        """Bytes of a line in the file."""
        return len(line.encode(self._wrapper.encoding, errors="replace"))
