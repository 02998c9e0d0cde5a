"""Texts of records: JSON lines, CSV and TSV, Parquet."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from gptmini.data.sources.decoding import as_utf8
from gptmini.data.sources.opening import need_pyarrow
from gptmini.user_error import UserError

LONGEST_RECORD = 2**26  # bytes; a record has to be held in memory whole
ROWS = 256  # rows of a table that are read at once
LONGEST_HEADING = 2**16  # bytes of the first line of a table that are looked at
FIELDS_SHOWN = 12  # names of fields that an error gives


def json_texts(
    stream: BinaryIO,
    file: Path,
    field: str,
    encoding: str,
    on_bad: Callable[[str], None],
) -> Iterator[str]:
    """The texts of a field in JSON records, one record a line; blank lines are passed over.

    Args:
        stream: the bytes of the file, unpacked.
        file: the name that an error gives.
        field: the field's name; dots lead into nested records.
        encoding: of the file.
        on_bad: is told of each record that cannot be read.
    """
    lines = as_utf8(stream, file, encoding)
    number = 0
    offset = 0
    while line := lines.readline(LONGEST_RECORD + 1):
        number += 1
        where = f"{file}, line {number:,} (byte {offset:,}),"
        is_too_long = len(line) > LONGEST_RECORD
        offset += len(line)
        while is_too_long and not line.endswith(b"\n"):
            line = lines.readline(LONGEST_RECORD)
            offset += len(line)
            if not line:
                break
        if is_too_long:
            on_bad(f"{where} must hold at most {LONGEST_RECORD:,} bytes")
            continue

        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            on_bad(f"{where} must be a JSON record, got {_reason(error)}")
            continue
        text = _text_of(record, field, where, on_bad)
        if text is not None:
            yield text


def table_texts(
    stream: BinaryIO,
    file: Path,
    field: str,
    encoding: str,
    *,
    delimiter: str,
    on_bad: Callable[[str], None],
) -> Iterator[str]:
    """The texts of a column of CSV or TSV, whose first line names the columns.

    Arguments as for json_texts; delimiter stands between the values of a row.
    Raises UserError: there is no such column, or the file is no table.
    """
    pyarrow = need_pyarrow(file)
    from pyarrow import csv as arrow

    refusals: list[UserError] = []  # what on_bad raised, which cannot pass through pyarrow

    def on_bad_row(row: Any) -> str:
        number = "" if row.number is None else f", row {row.number:,},"
        try:
            on_bad(
                f"{file}{number} must have {row.expected_columns} values, got {row.actual_columns}"
            )
        except UserError as error:
            refusals.append(error)
            return "error"
        return "skip"

    lines = as_utf8(stream, file, encoding)
    names = _columns(lines.peek(LONGEST_HEADING), delimiter)
    if field not in names:
        raise UserError(_missing(str(file), field, names))

    try:
        table = arrow.open_csv(
            pyarrow.PythonFile(lines, mode="r"),
            read_options=arrow.ReadOptions(block_size=LONGEST_RECORD, use_threads=False),
            parse_options=arrow.ParseOptions(
                delimiter=delimiter,
                newlines_in_values=True,
                invalid_row_handler=on_bad_row,
            ),
            convert_options=arrow.ConvertOptions(
                include_columns=[field],
                column_types={field: pyarrow.string()},
                strings_can_be_null=False,
                quoted_strings_can_be_null=False,
            ),
        )
        for batch in table:
            yield from batch.column(0).to_pylist()
    except pyarrow.ArrowException as error:
        if refusals:
            raise refusals[0] from None
        raise UserError(f"{file} must be a table, got: {_reason(error)}") from None


def _columns(data: bytes, delimiter: str) -> list[str]:
    """The names of the columns of a table that begins with these bytes."""
    text = io.StringIO(data.decode(errors="replace"), newline="")
    try:
        return next(csv.reader(text, delimiter=delimiter), [])
    except csv.Error:
        return []


def parquet_texts(
    file: Path,
    field: str,
    on_bad: Callable[[str], None],
    on_position: Callable[[int], None],
) -> Iterator[str]:
    """The texts of a column of Parquet; arguments as for json_texts.

    on_position is told again and again how much of the file has been read, in bytes, as the share of rows says.
    Raises UserError: there is no such column, or the file is damaged.
    """
    pyarrow = need_pyarrow(file)
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as table:
            column, *_ = field.split(".")
            names = table.schema_arrow.names
            if column not in names:
                raise UserError(_missing(str(file), field, names))

            number = 0
            n_rows = max(table.metadata.num_rows, 1)
            size = file.stat().st_size
            for batch in table.iter_batches(batch_size=ROWS, columns=[column], use_threads=False):
                on_position(size * number // n_rows)
                for row in batch.column(0):
                    number += 1
                    where = f"{file}, row {number:,},"
                    try:
                        record = {column: row.as_py()}
                    except UnicodeDecodeError:  # the format lets a writer put any bytes there
                        on_bad(f"{where} must be UTF-8 in the field {field}")
                        continue
                    text = _text_of(record, field, where, on_bad)
                    if text is not None:
                        yield text
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{file} must be a whole Parquet file, got: {_reason(error)}") from None


def _text_of(record: Any, field: str, where: str, on_bad: Callable[[str], None]) -> str | None:
    """The text of a field of a record; None, and a word to on_bad, where it has none."""
    value = record
    for name in field.split("."):
        if not isinstance(value, dict):
            on_bad(f"{where} must be a record with the field {field}, got {value!r}")
            return None
        if name not in value:
            on_bad(_missing(where, field, list(value)))
            return None
        value = value[name]

    if not isinstance(value, str):
        on_bad(f"{where} must have text in the field {field}, got {value!r}")
        return None
    # JSON may hold half of a character as an escape, which no text file can.
    try:
        value.encode()
    except UnicodeEncodeError:
        on_bad(f"{where} must be Unicode, got half of a surrogate pair in the field {field}")
        return None
    return value


def _missing(where: str, field: str, names: list[str]) -> str:
    """The message for a field that a record lacks."""
    shown_names = [name if name.isprintable() else repr(name) for name in names[:FIELDS_SHOWN]]
    there = ", ".join(shown_names) or "none"
    return f"{where} must have the field {field}, as data.field says, got the fields {there}"


def _reason(error: Exception) -> str:
    """The first line of an error's message, which a library may have written in several."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
