"""A run's metrics.jsonl: what the run logged, as one JSON object a line, and the pictures that its lines name.

    {"step": 20, "time": 1795478858.222, "train/loss": 4.25, "weights/grad_norm": 1.5}
    {"step": 200, "time": 1795478901.7, "samples": ["a text that the model wrote", "another one"]}
    {"step": 200, "time": 1795478902.1, "zoom/mispredicted": [["token", "times"], ["the", "12"]]}
    {"step": 200, "time": 1795478902.3, "zoom/attention": {"picture": "zoom_attention-200.png"}}

"step" counts optimizer steps, and "time" the seconds since 1970. Of the other entries, which are called by their tags,
a number is a point of a curve, a list of texts the samples of a validation, a list of lists a table whose first row
holds the headings, and a picture a file in the run's folder pictures/. Numbers that are not finite are written as
NaN, Infinity and -Infinity, as Python's json writes and reads them.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gptmini.files import flush_file, replacing
from gptmini.user_error import UserError

FILE = "metrics.jsonl"  # in the run's folder
PICTURES = "pictures"  # folder inside the run's folder
STEP = "step"
TIME = "time"

# Prefixes of tags that every validation writes.
VALIDATION = ("val/", "samples", "zoom/")

# Prefix of tags that every start of a run writes again.
BEGINNING = "setup/"

Line = dict[str, Any]  # what one line holds, by tag
Curves = dict[str, list[tuple[int, float]]]  # (step, value) points, by tag


def read_lines(folder: Path, *, having: str = "") -> list[Line]:
    """Read a run's metrics.jsonl, in the order in which the run logged; an empty list where there is none.

    Args:
        folder: of the run.
        having: a tag; the lines without it are left out, and not even parsed. Empty for every line.

    A last line without an end, which a killed process leaves, is left out.
    Raises UserError: a line is no JSON object with a step.
    """
    path = folder / FILE
    if not path.is_file():
        return []

    wanted = json.dumps(having).encode() if having else b""
    lines = []
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        if wanted in text:
            line = _parsed(text, folder, number)
            # A table may name the tag too.
            if not having or having in line:
                lines.append(line)
    return lines


def _parsed(text: bytes, folder: Path, number: int) -> Line:
    """What a line holds, which is counted from 1; UserError unless that is a JSON object with a step."""
    try:
        line = json.loads(text)
    except ValueError:
        line = None
    if not isinstance(line, dict) or type(line.get(STEP)) is not int:
        raise UserError(
            f"{folder / FILE} must hold a JSON object with a step in each line, "
            f"and line {number} is none; move the file away"
        )
    return line


def tags_of(line: Line) -> dict[str, Any]:
    """What a line holds by its tags: without its step and its time."""
    return {tag: value for tag, value in line.items() if tag not in (STEP, TIME)}


def is_number(value: object) -> bool:
    """Whether the value of a tag is a point of a curve."""
    return isinstance(value, int | float)


def curves_of(lines: Sequence[Line]) -> Curves:
    """The points of every curve by its tag, in the order of their steps."""
    curves: Curves = {}
    # A step that was not applied is told a step late.
    for line in sorted(lines, key=lambda line: line[STEP]):
        for tag, value in tags_of(line).items():
            if is_number(value):
                curves.setdefault(tag, []).append((line[STEP], value))
    return curves


def picture_path(folder: Path, value: object) -> Path | None:
    """The file of a picture that the value of a tag names, in a run's folder; None if the value is no picture."""
    if not isinstance(value, dict) or not isinstance(value.get("picture"), str):
        return None
    # Only the name counts: a line of a run that somebody else wrote leads to no file elsewhere.
    return folder / PICTURES / Path(value["picture"]).name


@contextmanager
def dropping_later_lines(folder: Path, step: int, *, validated: bool) -> Iterator[list[Line]]:
    """Remove from a run's metrics.jsonl and pictures/ what the run logs again when it is resumed at a step.

    That is everything after the step, the description of the run, and, unless validated, the validation of the step
    itself. Yields the lines that stay. The new file is written before the block and takes the place of the old one
    after it, so that an error in the block leaves all as it was.
    """
    lasting = []
    for line in read_lines(folder):
        kept = {tag: value for tag, value in line.items() if not tag.startswith(BEGINNING)}
        if line[STEP] == step and not validated:
            kept = {tag: value for tag, value in kept.items() if not tag.startswith(VALIDATION)}
        if line[STEP] <= step and tags_of(kept):
            lasting.append(kept)

    if not (folder / FILE).is_file():
        yield lasting
        return
    with replacing(folder / FILE) as file:
        for line in lasting:
            file.write(line_of(line))
        flush_file(file)  # a full disk is told before the block
        yield lasting

    named = {picture_path(folder, value) for line in lasting for value in tags_of(line).values()}
    for path in (folder / PICTURES).glob("*"):
        if path.is_file() and path not in named:
            path.unlink()


def line_of(entries: Line) -> bytes:
    """Entries as a line of metrics.jsonl."""
    return f"{json.dumps(entries)}\n".encode()
