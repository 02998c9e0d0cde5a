"""A run's metrics.csv, read again: the scalars that the run logged, a row for each step."""

import csv
import io
from pathlib import Path

from gptmini.user_error import UserError

FILE = "metrics.csv"  # in the run's folder
STEP = "step"  # heading of the first column

# Rows of the file: by step the texts of the cells that are not empty, by tag.
Rows = dict[int, dict[str, str]]


def read_rows(path: Path) -> tuple[list[str], Rows]:
    """Read a metrics.csv: the tags of its columns, and its rows; a last line without an end is left out.

    Raises UserError: the file is not one that a run has written.
    """
    refusal = UserError(f"{path} must hold a row for each step, as a run wrote it; move it away")
    try:
        text = path.read_bytes().decode("utf-8")
        whole_lines = text[: text.rfind("\n") + 1]
        heading, *lines = csv.reader(io.StringIO(whole_lines), strict=True)
    except (ValueError, csv.Error):  # no UTF-8, no heading, or no CSV
        raise refusal from None

    if heading[:1] != [STEP]:
        raise refusal
    tags = heading[1:]
    rows: Rows = {}
    for line in lines:
        # isdecimal alone would allow digits of other scripts, and int refuses thousands of digits.
        is_row = len(line) == len(heading) and line[0].isascii() and line[0].isdecimal()
        if not is_row or len(line[0]) > 18:
            raise refusal
        cells = zip(tags, line[1:], strict=True)
        rows[int(line[0])] = {tag: cell for tag, cell in cells if cell}
    return tags, rows
