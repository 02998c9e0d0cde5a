"""Bytes as text: in the encoding that a byte order mark or the user names."""

import codecs
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, cast

from pydantic import AfterValidator

from gptmini.user_error import UserError

BLOCK = 2**20  # bytes that are read at once
SNIFFED = 2**16  # bytes around a mistake from which the encoding is guessed
# Byte order marks, the longer first: that of UTF-32 begins with that of UTF-16.
MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
# The encodings that a mistake is guessed to be in: those of most texts that are not UTF-8.
COMMON = ["cp1252", "cp1250", "cp1251", "koi8_r", "cp932", "gb18030", "big5", "euc_kr", "cp949"]
ALIKE = ("cp1252", "cp1250")  # encodings of which the first is named beside the other
BEFORE_AND_BEHIND = 12  # bytes around a mistake that are shown decoded
# How another encoding is read.
OTHERWISE = "which data=text data.encoding={} reads"
# Share of zero bytes from which a file is taken for UTF-16 without a mark: every second byte of English is zero there.
ZEROS = 0.3


def decoded(stream: BinaryIO, file: Path, encoding: str) -> Iterator[str]:
    """Read a stream as text, block by block, without the byte order mark that it may begin with.

    Args:
        stream: the bytes of the file, unpacked.
        file: the name that an error gives.
        encoding: as Python names it; a byte order mark counts for more.

    Raises UserError: bytes that are not in the encoding; it names their offset, and the encoding that they may be in.
    """
    block = stream.read(BLOCK)
    marked = _mark_of(block)
    if marked is not None:
        encoding = MARKS[marked]
        block = block[len(marked) :]

    refuses_zeros = marked is None and _is_utf8(encoding)
    decoder = codecs.getincrementaldecoder(encoding)()
    offset = 0 if marked is None else len(marked)  # of the block in the file
    while True:
        if refuses_zeros and 0 in block:
            raise _with_zeros(file, encoding, block, offset)
        pending, _ = decoder.getstate()  # bytes of a character that the last block began
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            start = offset - len(pending) + error.start
            raise _not_encoded(file, encoding, error, start) from None
        if text:
            yield text
        if not block:
            return
        offset += len(block)
        block = stream.read(BLOCK)


def decode_text(data: bytes, name: str) -> str:
    """Decode UTF-8, without the byte order mark that it may begin with.

    Raises UserError: bytes that are not UTF-8; it gives the offset of the first of them in what is called name.
    """
    try:
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        got = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise UserError(f"{name} must be UTF-8, got {got}; convert it first") from None


def as_utf8(stream: BinaryIO, file: Path, encoding: str) -> "io.BufferedReader[Any]":
    """Give a stream as UTF-8 without a byte order mark; arguments and errors are those of decoded.

    Bytes that are UTF-8 already are passed on unread, so that each record of a file can be checked by itself.
    """
    buffered = io.BufferedReader(cast(io.RawIOBase, stream), buffer_size=BLOCK)
    mark = _mark_of(buffered.peek(max(map(len, MARKS))))
    if mark == codecs.BOM_UTF8:
        buffered.read(len(mark))
    elif mark is not None or not _is_utf8(encoding):
        return io.BufferedReader(_Recoded(decoded(buffered, file, encoding)), buffer_size=BLOCK)
    return buffered


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


class _Recoded(io.RawIOBase):
    """Texts as a stream of UTF-8."""

    def __init__(self, texts: Iterator[str]) -> None:
        self._texts = texts
        self._pending = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as the next text goes; return the number of bytes, which is 0 at the end."""
        if not self._pending:
            self._pending = memoryview(next(self._texts, "").encode())
        n = min(len(buffer), len(self._pending))
        buffer[:n] = self._pending[:n]
        self._pending = self._pending[n:]
        return n


def _mark_of(data: bytes) -> bytes | None:
    """The byte order mark that data begins with; None if there is none."""
    return next((mark for mark in MARKS if data.startswith(mark)), None)


def _is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name == "utf-8"


def _with_zeros(file: Path, encoding: str, block: bytes, offset: int) -> UserError:
    """The error for a block with zero bytes, which text in UTF-8 does not have; offset is that of the block."""
    remedy = "convert it to text first"
    if block.count(0) > ZEROS * len(block):
        remedy = f"probably it is UTF-16, {OTHERWISE.format('utf-16-le')}"
    return UserError(
        f"{file} must be {_shown(encoding)}, got a zero byte at offset {offset + block.index(0):,}; {remedy}"
    )


def _not_encoded(file: Path, encoding: str, error: UnicodeDecodeError, start: int) -> UserError:
    """The error for bytes that are not in an encoding."""
    from charset_normalizer import from_bytes

    around = error.object[max(0, error.start - SNIFFED) : error.start + SNIFFED]
    guess = from_bytes(bytes(around), cp_isolation=COMMON).best()
    remedy = "convert it first"
    if guess is not None:
        # The encodings of Western and Central Europe differ in a few letters only, which a reader knows at a glance.
        likely = dict.fromkeys([*([COMMON[0]] if guess.encoding in ALIKE else []), guess.encoding])
        shown = [f"{name} ({_around(error, name)!r})" for name in likely]
        remedy = f"probably it is {' or '.join(shown)}, {OTHERWISE.format(next(iter(likely)))}"
    got = f"byte 0x{error.object[error.start]:02x} at offset {start:,}"
    return UserError(f"{file} must be {_shown(encoding)}, got {got}; {remedy}")


def _around(error: UnicodeDecodeError, encoding: str) -> str:
    """What the bytes around a mistake are in another encoding."""
    first = max(0, error.start - BEFORE_AND_BEHIND)
    return error.object[first : error.start + BEFORE_AND_BEHIND].decode(encoding, errors="replace")


def _shown(encoding: str) -> str:
    """The name of an encoding for an error message."""
    return "UTF-8" if _is_utf8(encoding) else encoding
