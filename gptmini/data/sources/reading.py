"""The documents of a file, in pieces of bounded size, so that no document need fit into memory."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass

from gptmini.data.sources.decoding import Encoding, decoded
from gptmini.data.sources.formats import format_of
from gptmini.data.sources.opening import opened
from gptmini.data.sources.records import json_texts, parquet_texts, table_texts
from gptmini.settings import STRICT
from gptmini.user_error import UserError

# Characters of a piece. A piece may be shorter, where a document ends, or longer, where white space is far away.
PIECE = 2**20
# Characters without a place to cut them; a longer run is refused by name, because it has to be held in memory.
LONGEST_RUN = 2**24
# Where a text may be cut: before white space that follows what is none. Python counts a few more characters as white
# space than the tokenizers do, and before these few, or behind them, nothing is cut.
CUT = re.compile(r"(?<=\S)[ \t-\r]")
LAST_CUT = re.compile(r"(?s:.*)\S(?=[ \t-\r])")  # matches from a start to the last such place

FieldName = Annotated[str, Field(min_length=1)]
Separator = Annotated[str, Field(min_length=1)]
OnError = Literal["fail", "skip"]


class Piece(NamedTuple):
    """A part of a document; joined, the pieces of a document are its text."""

    text: str
    ends: bool  # whether the document ends with this piece


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Reading:
    """How the documents of a file are read."""

    # The field of JSON records, CSV, TSV and Parquet that holds the text; dots lead into nested records.
    field: FieldName
    # Text between the documents of a file of plain text; None where a file is one document.
    separator: Separator | None
    encoding: Encoding  # of plain text, JSON, CSV and TSV, as Python names it; a byte order mark counts for more
    on_error: OnError  # fail, or skip to leave out the records that cannot be read


def read_pieces(
    file: Path,
    reading: Reading,
    on_skip: Callable[[str], None],
    on_position: Callable[[int], None] = lambda position: None,
    on_separator: Callable[[], None] = lambda: None,
) -> Iterator[Piece]:
    """Read the documents of a file in their order; an empty document is left out.

    Each piece but a document's last ends before white space that follows a word, where no tokenizer of gptmini has a
    token that reaches from one side to the other.

    Args:
        file: a file of any format that format_of knows.
        reading: how the file is read.
        on_skip: with on_error=skip, is told of each record that is left out, and why.
        on_position: is told before each piece how many bytes of the file, as it lies on disk, have been read.
        on_separator: is told of each place in plain text where the separator stands.

    Raises UserError: the file is damaged, not in its encoding, or lacks the field; or with on_error=fail, a record that
    cannot be read.
    """

    def on_bad(problem: str) -> None:
        if reading.on_error == "fail":
            raise UserError(f"{problem}; data.on_error is fail, skip leaves such records out")
        on_skip(problem)

    format = format_of(file)
    if format.kind == "parquet":
        if format.packing:
            raise UserError(f"{file} must be a .parquet file; unpack it first")
        texts = parquet_texts(file, reading.field, on_bad, on_position)
        yield from in_pieces(((text, True) for text in texts), file)
        return

    with opened(file) as (stream, position):
        if format.kind == "text":
            blocks = decoded(stream, file, reading.encoding)
            parts = separated(blocks, reading.separator, on_separator)
        elif format.kind == "jsonl":
            texts = json_texts(stream, file, reading.field, reading.encoding, on_bad)
            parts = ((text, True) for text in texts)
        else:
            delimiter = "\t" if format.kind == "tsv" else ","
            texts = table_texts(
                stream,
                file,
                reading.field,
                reading.encoding,
                delimiter=delimiter,
                on_bad=on_bad,
            )
            parts = ((text, True) for text in texts)
        for piece in in_pieces(parts, file):
            on_position(position())
            yield piece


def separated(
    blocks: Iterator[str],
    separator: str | None,
    on_separator: Callable[[], None] = lambda: None,
) -> Iterator[tuple[str, bool]]:
    """Cut a text that comes in blocks into documents at each separator, which belongs to none of them.

    Yields parts of documents, each with whether a document ends behind it; a part may be empty.
    """
    rest = ""
    for block in blocks:
        if separator is None:
            yield block, False
            continue

        *documents, rest = (rest + block).split(separator)
        for text in documents:
            on_separator()
            yield text, True

        # The end of the block may be the beginning of a separator.
        kept = max(0, len(rest) - len(separator) + 1)
        yield rest[:kept], False
        rest = rest[kept:]
    yield rest, True


def in_pieces(parts: Iterator[tuple[str, bool]], file: Path) -> Iterator[Piece]:
    """Put parts of documents together to pieces, whose sizes do not depend on those of the parts.

    Args:
        parts: texts, each with whether a document ends behind it.
        file: the name that an error gives.

    Raises UserError: a run of characters that is too long and has no place to cut it.
    """
    pending = ""  # what is read of a document and is not yet part of a piece
    for text, ends in parts:
        pending += text
        start = 0
        while len(pending) - start > PIECE:
            cut = _place_to_cut(pending, start)
            if cut is None:
                break
            yield Piece(pending[start:cut], ends=False)
            start = cut
        pending = pending[start:]

        if len(pending) > PIECE + LONGEST_RUN:
            raise UserError(
                f"{file} must have a space or a line break behind a word at least every {LONGEST_RUN:,} characters, "
                f"got a longer run, which begins {pending[:20]!r}"
            )
        if ends:
            if pending:
                yield Piece(pending, ends=True)
            pending = ""


def _place_to_cut(text: str, start: int) -> int | None:
    """The last place to cut a text for a piece of at most PIECE characters, or else the first place behind it."""
    last = LAST_CUT.match(text, start, start + PIECE + 1)
    if last is not None:
        return last.end()
    found = CUT.search(text, start + PIECE)
    return None if found is None else found.start()
