"""How a table of text is written: what separates its values, and what its quotation marks mean."""

import csv
import io
import re
from pathlib import Path
from typing import Literal

from gptmini.data.opening import opened

# What separates the values of a row, by the kind of the file.
DELIMITERS = {"csv": ",", "tsv": "\t"}
# How a message calls this, and what other programs write in its place.
NAMES = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
EXCELS_LINE = "sep="  # begins a line above the header, which tells Excel the delimiter

SAMPLE = 2**20  # characters at the beginning of a .tsv file that tell what its quotation marks mean
LEADING_MARK = re.compile(r'(?:\A|[\t\r\n])"')
# A value as a program writes it that quotes: each quotation mark is around a value, or doubled inside of one.
VALUE = re.compile(r'(?:"[^"]*+(?:""[^"]*+)*+"|[^"\t\r\n]*+)(\t|\r\n|[\r\n]|\Z)')
UNCLOSED = re.compile(r'"[^"]*+(?:""[^"]*+)*+\Z')
LINE = re.compile(r"[^\r\n]*+(?:\r\n|[\r\n]|\Z)")

# quoted: quotation marks around a value are not part of the value, as in CSV. text: quotation marks are text. plain: as
# text, but no value in the sample begins with a quotation mark.
Quoting = Literal["quoted", "text", "plain"]


def quoting_of(file: Path, encoding: str) -> Quoting:
    """What the quotation marks of a .tsv file mean.

    pandas and Excel quote values as in CSV. Most other programs allow no tab and no line break in a value, and write
    quotation marks as they are. The reading with fewer bad rows in the sample is chosen, and quoted if both have as
    many.

    Raises UserError: the file is packed, and damaged.
    """
    with opened(file, encoding) as text:
        reader = io.TextIOWrapper(text.stream, text.encoding, errors="replace", newline="")
        sample = reader.read(SAMPLE)
        is_cut = reader.read(1) != ""
    if LEADING_MARK.search(sample) is None:
        return "plain"

    lines = LINE.findall(sample)[:-1]  # the last match is the empty one at the end
    if '"' in lines[0]:
        return "quoted"
    if is_cut:
        sample = sample.removesuffix(lines.pop())
    n_values = lines[0].count("\t") + 1 if lines else 0
    n_bad_lines = sum(line.count("\t") + 1 != n_values for line in lines if line.strip("\r\n"))
    return "quoted" if _n_bad_records(sample, n_values, is_cut) <= n_bad_lines else "text"


def looks_like_row(line: str, delimiter: str, n_values: int) -> bool:
    """Whether a line inside of a record, read alone, has as many values as a row of its table.

    A record of such lines may be rows behind a stray quotation mark. In a table of one column any line has as many
    values, and the answer is False.
    """
    return n_values > 1 and len(next(csv.reader([line], delimiter=delimiter), [])) == n_values


def separated(header: list[str], delimiter: str, following: str) -> tuple[str, list[str], str]:
    """What really separates the values of a table whose header does not have the wanted column.

    Args:
        header: the values of the first line, read with the delimiter.
        delimiter: what the name of the file says.
        following: the second line.

    Returns what the values seem to be separated by, in words; the names of the columns; and what to do about it.
    """
    line = delimiter.join(header)
    remedy = "the first line of a table names its columns"
    # The delimiter that occurs most often, and that of the file's name if none does.
    found = max(NAMES, key=lambda mark: (line.count(mark), mark == delimiter))
    if line.startswith(EXCELS_LINE) and len(line) > len(EXCELS_LINE):
        found = line[len(EXCELS_LINE)]
        remedy = f"delete the first line, {line.strip()}, which only Excel reads"
        line = following
    if found != delimiter:
        remedy = f"write the table with {NAMES[delimiter]}, as the ending of its name says"
    # A name that was quoted may hold a line break, which the reader of one line refuses.
    line = line.replace("\r", " ").replace("\n", " ").rstrip(" ")
    names = next(csv.reader([line], delimiter=found), [])
    return NAMES.get(found, repr(found)), names, remedy


def _n_bad_records(sample: str, n_values: int, is_cut: bool) -> int:
    """How many records of a sample are bad if it is quoted."""
    n_bad = 0
    start = 0
    while start < len(sample):
        line = LINE.match(sample, start)
        assert line is not None
        end, n_found = _record(sample, start)
        if not n_found and is_cut and UNCLOSED.match(sample, end):
            end, n_found = len(sample), n_values  # the record ends behind the sample

        inner = LINE.findall(sample, line.end(), end)[:-1]
        are_rows = bool(inner) and all(looks_like_row(one, "\t", n_values) for one in inner)
        is_blank = not line[0].strip("\r\n")
        is_bad = are_rows or (n_found != n_values and not is_blank)
        n_bad += is_bad
        start = line.end() if are_rows or not n_found else end
    return n_bad


def _record(sample: str, start: int) -> tuple[int, int]:
    """Where a quoted record ends, and the number of its values; of a bad one, where its bad value begins, and 0."""
    n_values = 0
    while True:
        value = VALUE.match(sample, start)
        if value is None:
            return start, 0
        n_values += 1
        start = value.end()
        if value[1] != "\t":
            return start, n_values
