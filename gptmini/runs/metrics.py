"""A run's metrics.jsonl, which contains one JSON object per line, and the pictures that these lines name.

    {"step": 20, "time": 1795478858.222, "train/loss": 4.25, "weights/grad_norm": 1.5}
    {"step": 200, "time": 1795478901.7, "samples": ["a text that the model wrote", "another one"]}
    {"step": 0, "time": 1795478851.1, "setup/config": [["key", "value"], ["seed", "1"]]}
    {"step": 200, "time": 1795478902.3, "zoom/attention": {"picture": "zoom_attention-200.png"}}

The entry "step" counts optimizer steps. The entry "time" is the number of seconds since 1970. The names of all other
entries are tags, and their values have these types:

- A number is a point of a curve.
- A list of strings holds the samples of a validation.
- A list of lists is a table. The first row of the table holds the headings.
- An object with the key "picture" names a picture file in the folder pictures/ of the run.

Numbers that are not finite are written as NaN, Infinity and -Infinity, as in Python's json module.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from gptmini.system.errors import UserError
from gptmini.system.files import flush_file, replacing
from gptmini.system.untrusted import LARGEST_JSON

METRICS = "metrics.jsonl"  # in the run's folder
PICTURES = "pictures"  # folder inside the run's folder
STEP = "step"
TIME = "time"

# Prefixes of the tags that every validation writes.
VALIDATION = ("val/", "samples", "zoom/")

Line = dict[str, Any]  # the entries of one line, by tag
Curves = dict[str, list[tuple[int, float]]]  # (step, value) points, by tag


def read_lines(folder: Path, *, having: str = "") -> list[Line]:
    """Return the parsed lines of a run's metrics.jsonl in order, or only the lines that have a tag.

    Skip the last line if it does not end with a line break, because a killed process may leave an incomplete line. Read
    line by line, because a sparse file can be larger than the memory. Raises UserError if a line is not a JSON object
    with the entry "step", or is too long.
    """
    path = folder / METRICS
    if not path.is_file():
        return []

    wanted = json.dumps(having).encode() if having else b""
    lines = []
    with path.open("rb") as file:
        for number, text in enumerate(iter(partial(file.readline, LARGEST_JSON), b""), start=1):
            is_complete = text.endswith(b"\n") or len(text) == LARGEST_JSON
            if is_complete and wanted in text:
                line = _parsed(text, folder, number)
                # The bytes of the tag may also appear in a cell of a table, so look for the tag in the parsed line.
                if not having or having in line:
                    lines.append(line)
    return lines


def _parsed(text: bytes, folder: Path, number: int) -> Line:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        line = None
    if not isinstance(line, dict) or type(line.get(STEP)) is not int:
        raise UserError(
            f"line {number} of {folder / METRICS} must be a JSON object with the key 'step'; move the file away"
        )
    return line


def tags_of(line: Line) -> dict[str, Any]:
    """Return the entries of a line by tag, without the entries "step" and "time"."""
    return {tag: value for tag, value in line.items() if tag not in (STEP, TIME)}


def is_number(value: object) -> bool:
    """Whether the value of a tag is a point of a curve."""
    return isinstance(value, int | float)


def curves_of(lines: Sequence[Line]) -> Curves:
    """Return the points of every curve by tag, sorted by step."""
    curves: Curves = {}
    # A skipped step is logged one step late, so sort the lines by step.
    for line in sorted(lines, key=lambda line: line[STEP]):
        for tag, value in tags_of(line).items():
            if is_number(value):
                curves.setdefault(tag, []).append((line[STEP], value))
    return curves


def picture_path(folder: Path, value: object) -> Path | None:
    """Return the path in the folder pictures/ that the value of a tag names, or None if the value is not a picture."""
    if not isinstance(value, dict) or not isinstance(value.get("picture"), str):
        return None
    # Use only the name of the file, because a line in another user's run must not point to a file outside the run.
    return folder / PICTURES / Path(value["picture"]).name


@contextmanager
def dropping_later_lines(folder: Path, step: int, *, validated: bool) -> Iterator[list[Line]]:
    """Remove the entries and pictures that a run will log again after it resumes at a step.

    The validation at the step itself is logged again unless `validated` is True. Yields the remaining lines. The new
    file replaces the old file after the block, so that an error in the block changes nothing.
    """
    remaining = []
    for line in read_lines(folder):
        entries = line
        if line[STEP] == step and not validated:
            entries = {tag: value for tag, value in line.items() if not tag.startswith(VALIDATION)}
        if line[STEP] <= step and tags_of(entries):
            remaining.append(entries)

    if not (folder / METRICS).is_file():
        yield remaining
        return
    with replacing(folder / METRICS) as file:
        for line in remaining:
            file.write(line_of(line))
        flush_file(file)  # if the disk is full, raise the error before the block runs
        yield remaining

    named = {picture_path(folder, value) for line in remaining for value in tags_of(line).values()}
    for path in (folder / PICTURES).glob("*"):
        if path.is_file() and path not in named:
            path.unlink()


def line_of(entries: Line) -> bytes:
    """Return the bytes of a line of metrics.jsonl with these entries."""
    return f"{json.dumps(entries)}\n".encode()
