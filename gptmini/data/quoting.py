"""Detect the delimiter of a table in a text file, and the meaning of its quotation marks."""

import csv
import io
import re
from pathlib import Path
from typing import Literal

from gptmini.data.opening import opened

# Delimiter of the values in a row for each kind of file.
DELIMITERS = {"csv": ",", "tsv": "\t"}
# Names of delimiters in messages. Some programs write semicolons or vertical bars instead of commas or tabs.
NAMES = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
EXCEL_LINE = "sep="  # start of a line before the header; Excel reads the delimiter from this line

SAMPLE = 2**20  # characters at the start of a .tsv file that show what its quotation marks mean
LEADING_MARK = re.compile(r'(?:\A|[\t\r\n])"')
# A value that a program wrote, with or without quotes. Quotation marks inside a quoted value are doubled.
VALUE = re.compile(r'(?:"[^"]*+(?:""[^"]*+)*+"|[^"\t\r\n]*+)(\t|\r\n|[\r\n]|\Z)')
UNCLOSED = re.compile(r'"[^"]*+(?:""[^"]*+)*+\Z')
LINE = re.compile(r"[^\r\n]*+(?:\r\n|[\r\n]|\Z)")

# quoted: quotation marks around a value are not part of the value, as in CSV.
# text: quotation marks are part of the value.
# plain: like text, but no value in the sample starts with a quotation mark.
Quoting = Literal["quoted", "text", "plain"]


def quoting_of(file: Path, encoding: str) -> Quoting:
    """Return the meaning of the quotation marks in a .tsv file.

    pandas and Excel quote values as in CSV. Most other programs do not allow tabs or line breaks in a value, and write
    quotation marks unchanged. The start of the file is parsed as "quoted" and as "text". The result is the meaning
    with fewer bad rows. If the numbers of bad rows are equal, the result is "quoted".

    Raises UserError if a compressed file is damaged.
    """
    with opened(file, encoding) as text:
        reader = io.TextIOWrapper(text.stream, text.encoding, errors="replace", newline="")
        sample = reader.read(SAMPLE)
        is_cut = reader.read(1) != ""
    if LEADING_MARK.search(sample) is None:
        return "plain"

    lines = LINE.findall(sample)[:-1]  # the last match is empty
    if '"' in lines[0]:
        return "quoted"
    if is_cut:
        sample = sample.removesuffix(lines.pop())
    n_values = lines[0].count("\t") + 1 if lines else 0
    n_bad_lines = sum(line.count("\t") + 1 != n_values for line in lines if line.strip("\r\n"))
    return "quoted" if _n_bad_records(sample, n_values, is_cut) <= n_bad_lines else "text"


def looks_like_row(line: str, delimiter: str, n_values: int) -> bool:
    """Return whether a line inside a record has as many values as a row of the table.

    If all lines of a record look like rows, a stray quotation mark may have joined several rows. Returns False for a
    table with one column, because every line would look like a row.
    """
    return n_values > 1 and len(next(csv.reader([line], delimiter=delimiter), [])) == n_values


def guess_delimiter(
    header: list[str], delimiter: str, following: str
) -> tuple[str, list[str], str]:
    """Guess the delimiter of a table whose header does not have the wanted column.

    Args:
        header: the values of the first line, split at the delimiter.
        delimiter: the delimiter that matches the file extension.
        following: the second line.

    Returns the name of the guessed delimiter, the names of the columns, and the text that explains the fix.
    """
    line = delimiter.join(header)
    remedy = "the first line of a table must contain the names of the columns"
    # Take the delimiter that occurs most often. If no delimiter occurs, take the delimiter of the file extension.
    found = max(NAMES, key=lambda mark: (line.count(mark), mark == delimiter))
    if line.startswith(EXCEL_LINE) and len(line) > len(EXCEL_LINE):
        found = line[len(EXCEL_LINE)]
        remedy = f"delete the first line {line.strip()}, which only Excel reads"
        line = following
    if found != delimiter:
        remedy = f"separate the values by {NAMES[delimiter]}, as the file extension requires"
    # A quoted name may contain a line break, which csv.reader would reject in a single line.
    line = line.replace("\r", " ").replace("\n", " ").rstrip(" ")
    names = next(csv.reader([line], delimiter=found), [])
    return NAMES.get(found, repr(found)), names, remedy


def _n_bad_records(sample: str, n_values: int, is_cut: bool) -> int:
    """Return the number of bad records in a sample that is parsed as "quoted"."""
    n_bad = 0
    start = 0
    while start < len(sample):
        line = LINE.match(sample, start)
        assert line is not None
        end, n_found = _record(sample, start)
        if not n_found and is_cut and UNCLOSED.match(sample, end):
            end, n_found = len(sample), n_values  # the record ends after the sample

        inner = LINE.findall(sample, line.end(), end)[:-1]
        are_rows = bool(inner) and all(looks_like_row(row, "\t", n_values) for row in inner)
        is_blank = not line[0].strip("\r\n")
        is_bad = are_rows or (n_found != n_values and not is_blank)
        n_bad += is_bad
        start = line.end() if are_rows or not n_found else end
    return n_bad


def _record(sample: str, start: int) -> tuple[int, int]:
    """Return the end of a quoted record and the number of values in the record.

    If a value is bad, return the start of this value and 0.
    """
    n_values = 0
    while True:
        value = VALUE.match(sample, start)
        if value is None:
            return start, 0
        n_values += 1
        start = value.end()
        if value[1] != "\t":
            return start, n_values
