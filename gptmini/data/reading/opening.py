"""Open files as text. Decompress a file if its extension requires this, and decode the bytes of the file."""

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

from gptmini.system.errors import UserError
from gptmini.system.files import install_command

BLOCK = 2**20  # bytes that are read at a time
LONGEST_LINE = 2**26  # most characters of a line or a record, because a record must fit into memory
ENCODING_REMEDY = "give a text file, or set data.encoding to the encoding of the file"
UNPACKERS: dict[str, Callable] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
PACKED = (*UNPACKERS, ".zst")
RECORDS = {  # the kind of records for each file extension
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
# Byte order marks. UTF-32 comes before UTF-16, because the little-endian mark of UTF-32 starts with the mark of UTF-16.
MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}


def _known_encoding(name: str) -> str:
    try:
        codecs.getincrementaldecoder(name)
        "".encode(name)  # refuses codecs that do not encode text, such as base64
    except LookupError:
        raise ValueError("must be a text encoding of Python, such as utf-8 or cp1252") from None
    return name


# The name that Python uses for a text encoding.
Encoding = Annotated[str, AfterValidator(_known_encoding)]


def format_of(file: Path) -> tuple[str, str]:
    """Return the kind and the compression of a file by its extensions: ("jsonl", ".zst") for a.jsonl.zst.

    The kind is a value of RECORDS, or "text" for any other extension. The compression is an extension of PACKED, or
    empty.
    """
    last = file.suffix.lower()
    return RECORDS.get(ending_of(file), "text"), last if last in PACKED else ""


def ending_of(file: Path) -> str:
    """Return the last extension of a file in lower case, without the compression: .csv for a.csv.gz."""
    ending = file.suffix.lower()
    return Path(file.stem).suffix.lower() if ending in PACKED else ending


class TextFile(NamedTuple):
    """A text file that is open for reading, positioned after its byte order mark."""

    path: Path
    content: "io.BufferedReader[Any]"  # the decompressed bytes
    on_disk: Any  # the file on disk; on_disk.tell() returns the number of bytes read from this file
    encoding: str
    offset: int  # length of the byte order mark in bytes; 0 if the file has no mark

    @property
    def is_utf8(self) -> bool:
        """Whether the encoding is UTF-8."""
        return codecs.lookup(self.encoding).name == "utf-8"


@contextmanager
def open_text(path: Path, encoding: str) -> Iterator[TextFile]:
    """Open a file as text in an encoding. A byte order mark in the file overrides the encoding.

    Raises UserError if a compressed file is damaged, or if Zstandard requires pyarrow.
    """
    _, packing = format_of(path)
    # pyarrow reads its own file objects faster than Python's file objects.
    on_disk = import_pyarrow(path).OSFile(str(path)) if packing == ".zst" else path.open("rb")

    try:
        with on_disk, _decompressed(on_disk, packing) as decompressed:
            content = io.BufferedReader(cast(io.RawIOBase, decompressed), buffer_size=BLOCK)
            start = content.peek(4)
            mark = next((mark for mark in MARKS if start.startswith(mark)), b"")
            content.read(len(mark))
            yield TextFile(path, content, on_disk, MARKS.get(mark, encoding), len(mark))
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        # Only an OSError of the operating system has an errno. A library raises it without one for damaged bytes.
        if getattr(error, "errno", None) is not None:
            raise
        raise UserError(
            f"cannot decompress {path}: the {packing} file is truncated or damaged ({error})"
        ) from None


def _decompressed(on_disk: BinaryIO, packing: str) -> BinaryIO:
    if packing in UNPACKERS:
        return UNPACKERS[packing](on_disk, "rb")
    if packing == ".zst":
        import pyarrow

        return pyarrow.CompressedInputStream(on_disk, "zstd")
    return on_disk


def import_pyarrow(file: Path) -> ModuleType:
    """Import pyarrow. If pyarrow is not installed, raise UserError with the command that installs pyarrow."""
    try:
        import pyarrow
    except ImportError:
        raise UserError(
            f"reading {file} requires pyarrow; run: {install_command('data')}"
        ) from None
    return pyarrow


def decoded(file: TextFile) -> Iterator[str]:
    """Decode a file block by block.

    Raises UserError for bytes that are not valid in the encoding, and for a zero byte in UTF-8, because the file is
    probably UTF-16.
    """
    decoder = codecs.getincrementaldecoder(file.encoding)()
    offset = file.offset  # position of the block in the file
    line = 1  # number of the line in which the block starts

    while True:
        block = file.content.read(BLOCK)
        try:
            if file.is_utf8 and 0 in block:
                place = block.index(0)
                raise UnicodeDecodeError("utf-8", block, place, place + 1, "zero byte")
            characters = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            # error.object is the block. If a character started in the previous block, error.object starts with the
            # bytes of this character from the previous block.
            start = offset + len(block) - len(error.object) + error.start
            before = error.object[: error.start].decode(file.encoding, errors="replace")
            number = line + before.count("\n")
            raise UserError(
                f"{file.path} is not valid {file.encoding.upper()}, got byte "
                f"0x{error.object[error.start]:02x} at offset {start:,} (line {number:,})",
                for_training=ENCODING_REMEDY,
            ) from None

        if characters:
            yield characters
        if not block:
            return
        offset += len(block)
        line += characters.count("\n")


class Lines(Iterator[str]):
    """An iterator over the lines of an open file. It stores the position of the next line.

    An invalid byte becomes half of a surrogate pair, so that only the record with this byte is unreadable.
    """

    def __init__(self, file: TextFile, *, newline: str) -> None:
        """Read the lines of a file.

        With newline="\\n", a line ends with \\n. With newline="", a line may end with \\r too.
        """
        self._wrapper = io.TextIOWrapper(
            file.content,
            encoding=file.encoding,
            errors="surrogateescape",
            newline=newline,
        )
        self._path = file.path
        self._number = 1  # number of the next line
        self._offset = file.offset  # position of the next line in the decompressed file
        self._first = 1  # number of the current record's first line
        self._length = 0  # characters of the current record read so far

    def begin_record(self) -> str:
        """Start a record with the next line. Return the file, the number and the byte offset of this line."""
        self._first = self._number
        self._length = 0
        return self._place()

    def last_line(self) -> str:
        """Return the last line of the current record for messages, or an empty string if it has only one line."""
        return f" to line {self._number - 1:,}" if self._number - 1 > self._first else ""

    def _place(self) -> str:
        return f"{self._path}, line {self._number:,} (byte {self._offset:,})"

    def __next__(self) -> str:
        """Return the next line, including the line end.

        Raises UserError if a line or a record has more than LONGEST_LINE characters. Raises UserError for bytes that
        are invalid in UTF-16 or UTF-32, because the rest of the file cannot be decoded.
        """
        try:
            line = self._wrapper.readline(LONGEST_LINE + 1)
        except UnicodeDecodeError as error:
            encoding = self._wrapper.encoding.upper()
            raise UserError(
                f"{self._place()}: this line or a later line contains invalid {encoding} ({error.reason})",
                for_training=ENCODING_REMEDY,
            ) from None
        if not line:
            raise StopIteration
        self._length += len(line)
        if self._length > LONGEST_LINE:
            raise UserError(
                f"{self._place()}: a record must have at most {LONGEST_LINE:,} characters; cut the record"
            )
        self._offset += len(line.encode(self._wrapper.encoding, errors="replace"))
        self._number += 1
        return line
