"""The documents of a file: plain text, JSON lines, CSV, TSV and Parquet."""

import csv
import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from gptmini.data.opening import (
    LONGEST_LINE,
    Lines,
    LineTooLongError,
    Opened,
    decoded,
    format_of,
    need_pyarrow,
    opened,
)
from gptmini.data.pieces import PIECE, Piece, in_pieces
from gptmini.data.quoting import DELIMITERS, looks_like_row, quoting_of, separated
from gptmini.user_error import UserError

ROWS = 256  # rows of a Parquet file that are read at once
FIELDS_SHOWN = 12  # names of fields that an error gives
SHOWN = 80  # characters of a wrong value that an error gives
MOST_LISTED = 10_000  # records that are listed where they are left out; of more, the number is told
# If a value has this many lines and all look like rows of its table, a note names it. Fewer are common in text.
SUSPICIOUS = 3

FieldName = Annotated[str, Field(min_length=1)]
Separator = Annotated[str, Field(min_length=1)]
OnError = Literal["fail", "skip"]
Template = Literal["chat"]
LossOn = Literal["all", "answers"]


class Reader:
    """Reads the documents of one file after the other, and knows what it met on the way.

    A record that cannot be read is a UserError with the file, the line or row, and the byte where the line begins; with
    on_error=skip the record is left out and counted.
    """

    def __init__(
        self,
        *,
        field: str = "text",
        separator: str | None = None,
        encoding: str = "utf-8",
        on_error: OnError = "fail",
        template: Template | None = None,
    ) -> None:
        """Take how files are read.

        Args:
            field: the field of JSON records, CSV, TSV and Parquet that holds the text; dots lead into nested records.
            separator: text between the documents of a file of plain text; None where a file is one document.
            encoding: of plain text, JSON, CSV and TSV, as Python names it; a byte order mark counts for more.
            on_error: fail, or skip to leave out the records that cannot be read.
            template: chat for records whose field holds messages, a list of records with role and content. Each becomes
                a document of these in JSON, in one piece.
        """
        self.template = template
        self.field = field
        self.separator = separator
        self.encoding = encoding
        self.on_error = on_error

        self.position = 0  # bytes of the present file, as it lies on disk, that have been read
        self.n_separators = 0  # places in plain text where the separator stands
        self.n_skipped = 0  # records that were left out
        self.skipped: list[str] = []  # what is wrong with each of the first MOST_LISTED of these
        # .tsv files whose quotation marks around values were removed, and those that have such marks as text.
        self.quoted: list[Path] = []
        self.marked: list[Path] = []
        # Places of values whose lines look like rows of the table, the first MOST_LISTED.
        self.merged: list[str] = []

    def pieces(self, file: Path) -> Iterator[Piece]:
        """Read the documents of a file in their order; an empty document is left out.

        Each piece but a document's last ends before white space that follows a word, where no tokenizer of gptmini has
        a token that reaches from one side to the other.

        Raises UserError: the file is damaged, not in its encoding, or lacks the field; a record cannot be read; or
        pyarrow is needed and not installed.
        """
        self.position = 0
        kind, packing = format_of(file)
        if kind == "parquet":
            if packing:
                raise UserError(f"{file} must be a .parquet file; unpack it first")
            yield from in_pieces(self._parquet_texts(file), file)
            return

        if self.template and kind != "jsonl":
            raise UserError(f"{file} must be JSON lines or Parquet to hold chats, got {kind}")
        with opened(file, self.encoding) as text:
            if kind == "text":
                parts = self._separated(decoded(text, file))
            elif kind == "jsonl":
                parts = self._json_texts(text, file)
            else:
                parts = self._table_texts(text, file, kind)

            for piece in in_pieces(parts, file):
                if not text.raw.closed:  # behind the last line of records, Python closes the file
                    self.position = text.raw.tell()
                yield piece

    def _separated(self, blocks: Iterator[str]) -> Iterator[Piece]:
        """Cut a text that comes in blocks into documents at each separator, which belongs to none of them."""
        separator = self.separator
        rest = ""
        for block in blocks:
            if separator is None:
                yield Piece(block, ends=False)
                continue

            *documents, rest = (rest + block).split(separator)
            self.n_separators += len(documents)
            for text in documents:
                yield Piece(text, ends=True)

            # The end of the block may be the beginning of a separator.
            kept = max(0, len(rest) - len(separator) + 1)
            yield Piece(rest[:kept], ends=False)
            rest = rest[kept:]
        yield Piece(rest, ends=True)

    def _json_texts(self, text: Opened, file: Path) -> Iterator[Piece]:
        """The texts of JSON records, one record a line; blank lines are passed over."""
        lines = Lines(text, file, newline="\n")
        while True:
            lines.begin_record()
            where = lines.place()
            try:
                line = next(lines)
            except StopIteration:
                return
            except LineTooLongError as error:
                self._leave_out(f"{where} must be a JSON record, got {error}")
                continue
            if line.isspace():
                continue

            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                self._leave_out(f"{where} must be a JSON record, got {_reason(error)}")
                continue
            yield from self._text_of(record, where)

    def _table_texts(self, text: Opened, file: Path, kind: str) -> Iterator[Piece]:
        """The texts of a column of CSV or TSV, whose first line names the columns; blank lines are passed over."""
        delimiter = DELIMITERS[kind]
        is_quoted = kind == "csv" or quoting_of(file, self.encoding) == "quoted"
        if kind == "tsv" and is_quoted:
            self.quoted.append(file)

        # The limit is one of the whole process. Lines allows no longer record.
        csv.field_size_limit(LONGEST_LINE)
        lines = Lines(text, file, newline="")
        rows = csv.reader(
            lines,
            delimiter=delimiter,
            quoting=csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE,
            strict=True,
        )
        try:
            names = next(rows, [])
        except (csv.Error, LineTooLongError):
            names = []
        if self.field not in names:
            following = ""
            with suppress(LineTooLongError):
                following = next(lines, "")
            found, names, remedy = separated(names, delimiter, following)
            raise UserError(f"{_missing(str(file), self.field, names)} between {found}; {remedy}")
        column = names.index(self.field)
        is_like_row = partial(looks_like_row, delimiter=delimiter, n_values=len(names))

        has_marks = False
        while True:
            lines.begin_record()
            where = lines.place()
            try:
                row = next(rows)
            except StopIteration:
                break
            except (csv.Error, LineTooLongError) as error:
                # The lines behind a stray quotation mark are rows.
                lines.go_back()
                self._leave_out(f"{where} must be a row of a table, got: {error}")
                continue

            n_like_rows = lines.n_behind_first(is_like_row)
            if not row:
                continue
            if len(row) != len(names):
                if n_like_rows:
                    lines.go_back()
                self._leave_out(f"{where} must have {len(names)} values, got {len(row)}")
                continue
            if n_like_rows >= SUSPICIOUS and len(self.merged) < MOST_LISTED:
                self.merged.append(where)
            has_marks |= not is_quoted and row[column].startswith('"')
            yield from self._checked(row[column], where)

        if has_marks:
            self.marked.append(file)

    def _parquet_texts(self, file: Path) -> Iterator[Piece]:
        """The texts of a column of Parquet; the position follows from the share of rows."""
        pyarrow = need_pyarrow(file)
        from pyarrow import parquet

        column, *_ = self.field.split(".")
        try:
            with parquet.ParquetFile(file) as table:
                names = table.schema_arrow.names
                if column not in names:
                    raise UserError(_missing(str(file), self.field, names))

                number = 0
                n_rows = max(table.metadata.num_rows, 1)
                size = file.stat().st_size
                for batch in table.iter_batches(ROWS, columns=[column], use_threads=False):
                    self.position = size * number // n_rows
                    for row in batch.column(0):
                        number += 1
                        where = f"{file}, row {number:,},"
                        try:
                            record = {column: row.as_py()}
                        except UnicodeDecodeError:  # the format lets a writer put any bytes there
                            self._leave_out(f"{where} must be UTF-8 in the field {self.field}")
                            continue
                        yield from self._text_of(record, where)
        except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
            raise UserError(f"{file} must be a whole Parquet file, got: {_reason(error)}") from None

    def _text_of(self, record: Any, where: str) -> Iterator[Piece]:
        """The text of the field in a record, as a document; none, and a record left out, where there is none."""
        value = record
        for name in self.field.split("."):
            if not isinstance(value, dict):
                self._leave_out(
                    f"{where} must be a record with the field {self.field}, got {value!r:.{SHOWN}}"
                )
                return
            if name not in value:
                self._leave_out(_missing(where, self.field, list(value)))
                return
            value = value[name]
        yield from self._checked(value, where)

    def _checked(self, value: Any, where: str) -> Iterator[Piece]:
        """A value as a document; none, and a record left out, where the value is no text, or no chat."""
        if self.template:
            chat = _as_json(value)
            if chat is None:
                self._leave_out(
                    f"{where} must have a chat in the field {self.field}, a list of messages with role and content of "
                    f"at most {PIECE:,} characters, got {value!r:.{SHOWN}}"
                )
                return
            value = chat

        problem = f"{where} must have text in the field {self.field}, got"
        if not isinstance(value, str):
            self._leave_out(f"{problem} {value!r:.{SHOWN}}")
            return
        try:
            value.encode()
        except UnicodeEncodeError as error:
            # JSON may hold half of a surrogate pair as an escape, and a byte in another encoding is decoded as one.
            character = value[error.start]
            self._leave_out(
                f"{problem} {character!r}, half of a surrogate pair or a byte in another encoding"
            )
            return
        yield Piece(value, ends=True, where=where if self.template else "")

    def _leave_out(self, problem: str) -> None:
        """Count a record that cannot be read; UserError unless such records are to be left out."""
        if self.on_error == "fail":
            remedy = "data.on_error is fail; set it to skip to leave such records out"
            raise UserError(problem, for_training=remedy)
        self.n_skipped += 1
        if self.n_skipped <= MOST_LISTED:
            self.skipped.append(problem)


def _as_json(messages: Any) -> str | None:
    """Messages in JSON; None for what are no messages with role and content, and for what is longer than a piece.

    Fields without a value are left out, as transformers does.
    """
    try:
        plain = []
        for one in messages:
            required = {"role": one["role"], "content": one["content"]}
            if not all(isinstance(text, str) for text in required.values()):
                return None
            others = {name: value for name, value in one.items() if value is not None}
            plain.append(required | others)
        chat = json.dumps(plain, ensure_ascii=False)
    except (TypeError, KeyError):  # TypeError also for a value that JSON does not have, as a date
        return None
    return chat if plain and len(chat) <= PIECE else None


def _missing(where: str, field: str, names: list[str]) -> str:
    """The message for a field that a record lacks."""
    shown_names = [name if name.isprintable() else repr(name) for name in names[:FIELDS_SHOWN]]
    there = ", ".join(shown_names) or "none"
    return f"{where} must have the field {field}, as data.field says, got the fields {there}"


def _reason(error: Exception) -> str:
    """The first line of an error's message, which a library may have written in several."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
