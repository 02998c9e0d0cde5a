"""Read the documents of a file. The file contains plain text, JSON lines, CSV, TSV or Parquet."""

import csv
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from gptmini.data.reading.chat_formats import (
    CHAT_FIELDS,
    document_of,
    format_of_chat,
    missing_field,
    value_of,
)
from gptmini.data.reading.cutting import in_parts
from gptmini.data.reading.opening import (
    LONGEST_LINE,
    Lines,
    TextFile,
    decoded,
    format_of,
    import_pyarrow,
    open_text,
)
from gptmini.data.reading.skipped import SkippedRecords
from gptmini.system.errors import UserError, value_text
from gptmini.tokenizer import Document

ROWS = 256  # rows of a Parquet file that are read at a time
# Delimiter of the values in a row for each kind of file.
DELIMITERS = {"csv": ",", "tsv": "\t"}
OTHER_DELIMITERS = ",;\t|"  # delimiters of tables that other programs write
# A note reports a value if it has at least this many lines with as many delimiters as a row. Text often contains a few
# lines that look like rows.
SUSPICIOUS = 3

IS_CHAT = "contains a chat instead of text"
CHAT_REMEDY = "add data.template=chat to train on chats"

FieldName = Annotated[str, Field(min_length=1)]
Separator = Annotated[str, Field(min_length=1)]
OnError = Literal["fail", "skip"]
Template = Literal["chat"]
LossOn = Literal["all", "answers"]


@dataclass(kw_only=True)
class Reader:
    """A reader of the documents of files. It counts bytes, separators and skipped records, and notes empty files.

    The message about an unreadable record contains the file, the line or row, and the byte offset of the line.
    """

    # Name of the field that contains the text in JSON, CSV, TSV and Parquet. The name a.b means the field b of the
    # record in the field a.
    field: str = "text"
    # Text between the documents of a plain text file. None if a file is one document.
    separator: str | None = None
    encoding: str = "utf-8"  # Python's name; a byte order mark in a file overrides it
    on_error: OnError = "fail"  # "skip" skips unreadable records
    # "chat" if the records contain chats. Each chat becomes a document in one part, with the messages in JSON.
    template: Template | None = None
    # Whether quotation marks around a value of CSV or TSV are not part of the value. None: True for CSV.
    quote: bool | None = None

    def __post_init__(self) -> None:
        """Start to count."""
        self.n_bytes_done = 0  # bytes on disk of the files that were read completely
        self.position = 0  # bytes of the current file on disk that have been read
        self.empty: list[Path] = []  # files without text
        self.n_separators = 0  # number of separators that were found in plain text
        self.skipped = SkippedRecords()
        # Place of the first row with a value whose lines look like rows of the table.
        self.odd_row = ""
        self.unused: set[str] = set()  # names of fields of chats that are known, but not used

    def read(self, path: Path) -> Iterator[Document]:
        """Yield the documents of a file in order, as the parts of in_parts. The documents have no split.

        Raises UserError if the file is damaged, has a different encoding, or does not have the field. Raises UserError
        if a record cannot be read, or if pyarrow is required but not installed.
        """
        part: Document | None = None
        for part in self._parts_of(path):
            yield part
        if part is None:
            self.empty.append(path)

        self.n_bytes_done += path.stat().st_size
        self.position = 0

    def _parts_of(self, path: Path) -> Iterator[Document]:
        kind, packing = format_of(path)
        if kind == "parquet" and packing:
            raise UserError(
                f"Parquet files must not be compressed, got {path}; decompress the file first"
            )
        if kind == "parquet":
            yield from in_parts(self._parquet_texts(path), path)
            return
        if self.template and kind != "jsonl":
            raise UserError(
                f"data.template=chat requires JSON lines or Parquet, got the format '{kind}' of {path}"
            )

        with open_text(path, self.encoding) as file:
            if kind == "text":
                blocks = self._separated(decoded(file))
            elif kind == "jsonl":
                blocks = self._json_texts(file)
            else:
                blocks = self._table_texts(file, kind)

            for part in in_parts(blocks, path):
                if not file.on_disk.closed:  # Python closes the file after the last line of records
                    self.position = file.on_disk.tell()
                yield part

    def _separated(self, blocks: Iterator[str]) -> Iterator[Document]:
        separator = self.separator
        rest = ""
        for block in blocks:
            if separator is None:
                yield Document(None, block, ends=False)
                continue

            *documents, rest = (rest + block).split(separator)
            self.n_separators += len(documents)
            for text in documents:
                yield Document(None, text)

            # A separator may start at the end of the block.
            n_complete = max(0, len(rest) - len(separator) + 1)
            yield Document(None, rest[:n_complete], ends=False)
            rest = rest[n_complete:]
        yield Document(None, rest)

    def _json_texts(self, file: TextFile) -> Iterator[Document]:
        lines = Lines(file, newline="\n")
        while True:
            where = lines.begin_record()
            line = next(lines, "")
            if not line:
                return
            if line.isspace():
                continue

            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                self._skip(f"{where}: invalid JSON: {error}")
                continue
            yield from self._text_of(record, where)

    def is_quoted(self, kind: str) -> bool:
        """Return whether quotation marks around a value are not part of the value in this kind of table."""
        return kind == "csv" if self.quote is None else self.quote

    def _table_texts(self, file: TextFile, kind: str) -> Iterator[Document]:
        delimiter = DELIMITERS[kind]
        # This limit applies to the entire process. Lines rejects longer records.
        csv.field_size_limit(LONGEST_LINE)
        lines = Lines(file, newline="")
        rows = csv.reader(
            lines,
            delimiter=delimiter,
            quoting=csv.QUOTE_MINIMAL if self.is_quoted(kind) else csv.QUOTE_NONE,
            strict=True,
        )
        names: list[str] = []
        with suppress(csv.Error):
            names = next(rows, [])
        if self.field not in names:
            problem = f"{file.path}: {missing_field(self.field, dict.fromkeys(names))}"
            if len(names) == 1 and any(mark in names[0] for mark in OTHER_DELIMITERS):
                problem += f"; separate the values by {delimiter!r}, as the file extension requires"
            raise UserError(problem)
        column = names.index(self.field)

        while True:
            where = lines.begin_record()
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                fix = "set data.quote=false if quotation marks are text, or data.on_error=skip to skip such records"
                self._skip(f"{where}{lines.last_line()}: invalid table row: {error}", fix)
                continue
            if not row:
                continue
            if len(row) != len(names):
                problem = f"{where}{lines.last_line()}: the row must have {len(names)} values, got {len(row)}"
                if any('"' in value for value in row) and not self.is_quoted(kind):
                    problem += " (data.quote=true joins lines between quotation marks)"
                self._skip(problem)
                continue
            if not self.odd_row and any(_has_rows(value, delimiter, len(names)) for value in row):
                self.odd_row = where
            yield from self._checked(row[column], where)

    def _parquet_texts(self, file: Path) -> Iterator[Document]:
        pyarrow = import_pyarrow(file)
        from pyarrow import parquet

        first, *_ = self.field.split(".")
        try:
            with parquet.ParquetFile(file) as table:
                names = table.schema_arrow.names
                wanted = {first, *CHAT_FIELDS} if self.template else {first}
                columns = [name for name in names if name in wanted]
                if not columns and format_of_chat(dict.fromkeys(names)):
                    raise UserError(f"{file} {IS_CHAT}", for_training=CHAT_REMEDY)
                if not columns:
                    raise UserError(f"{file}: {missing_field(self.field, dict.fromkeys(names))}")

                number = 0
                n_rows = max(table.metadata.num_rows, 1)
                size = file.stat().st_size
                for batch in table.iter_batches(ROWS, columns=columns, use_threads=False):
                    self.position = size * number // n_rows  # an estimate
                    for values in zip(*batch.columns, strict=True):
                        number += 1
                        where = f"{file}, row {number:,}"
                        try:
                            names_and_values = zip(batch.schema.names, values, strict=True)
                            record = {name: value.as_py() for name, value in names_and_values}
                        except UnicodeDecodeError:  # Parquet does not check the bytes of text
                            self._skip(f"{where}: the field '{self.field}' is not valid UTF-8")
                            continue
                        yield from self._text_of(record, where)
        except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
            reason, *_ = str(error).split("\n")
            raise UserError(f"cannot read {file} as Parquet: {reason}") from None

    def _text_of(self, record: Any, where: str) -> Iterator[Document]:
        is_chat = not self.template and isinstance(record, dict) and format_of_chat(record)
        if is_chat and "." not in self.field and not isinstance(record.get(self.field), str):
            self._skip(f"{where} {IS_CHAT}", CHAT_REMEDY)
            return

        try:
            if self.template:
                value, unused = document_of(record, self.field)
                self.unused |= unused
            else:
                value = value_of(record, self.field)
        except UserError as error:
            self._skip(f"{where}: {error}")
            return
        yield from self._checked(value, where)

    def _checked(self, value: Any, where: str) -> Iterator[Document]:
        problem = f"{where}: the field '{self.field}' must be text, got"
        if not isinstance(value, str):
            self._skip(f"{problem} {value_text(value)}")
            return
        try:
            value.encode()
        except UnicodeEncodeError as error:
            # JSON may contain half of a surrogate pair as an escape. An invalid byte is decoded to this half, too.
            character = value[error.start]
            self._skip(
                f"{problem} {character!r}, half of a surrogate pair or a byte in a different encoding"
            )
            return
        yield Document(None, value, where=where if self.template else "")

    def _skip(self, problem: str, fix: str = "set data.on_error=skip to skip such records") -> None:
        if self.on_error == "fail":
            raise UserError(problem, for_training=fix)
        self.skipped.add(1, [problem])


def _has_rows(value: str, delimiter: str, n_values: int) -> bool:
    """Return whether a stray quotation mark may have joined several rows of a table to this value."""
    inner = value.splitlines()[1:-1]  # marks are in the first and the last line
    are_rows = all(line.count(delimiter) == n_values - 1 for line in inner)
    return n_values > 1 and len(inner) >= SUSPICIOUS and are_rows
