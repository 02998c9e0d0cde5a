"""A run's curves as a table in CSV: a row for each step, a column for each tag."""

import csv
import io
from collections.abc import Sequence

from gptmini.runs.metrics import STEP, Line, curves_of

FILE = "metrics.csv"  # in the run's folder


def csv_of(lines: Sequence[Line]) -> str:
    """The curves of a run's metrics.jsonl as CSV, whose first line holds the headings: step, and every tag.

    The rows are in the order of their steps. A tag that was not logged at a step is an empty cell, and a number that is
    not finite is nan, inf or -inf.
    """
    curves = curves_of(lines)
    rows: dict[int, dict[str, float]] = {}
    for tag, points in curves.items():
        for step, value in points:
            rows.setdefault(step, {})[tag] = value

    text = io.StringIO()
    writer = csv.DictWriter(text, [STEP, *curves], lineterminator="\n")
    writer.writeheader()
    for step in sorted(rows):
        writer.writerow({STEP: step, **rows[step]})
    return text.getvalue()
