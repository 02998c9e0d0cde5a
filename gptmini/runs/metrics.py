"""A run's metrics.jsonl, which contains one JSON object per line, and the pictures that these lines name.

    {"step": 20, "time": 1795478858.222, "train/loss": 4.25, "weights/grad_norm": 1.5}
    {"step": 200, "time": 1795478901.7, "samples": ["a text that the model wrote", "another one"]}
    {"step": 200, "time": 1795478902.1, "zoom/mispredicted": [["token", "times"], ["the", "12"]]}
    {"step": 200, "time": 1795478902.3, "zoom/attention": {"picture": "zoom_attention-200.png"}}

"step" counts optimizer steps, and "time" the seconds since 1970. The other entries are named by their tags:

- A number is a point of a curve.
- A list of strings holds the samples of a validation.
- A list of lists is a table. Its first row holds the headings.
- A picture is a file in the run's folder pictures/.

Numbers that are not finite are written as NaN, Infinity and -Infinity, as in Python's json module.
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

# Prefixes of the tags that every validation writes.
VALIDATION = ("val/", "samples", "zoom/")

# Prefix of the tags that a run writes again each time it starts or resumes.
BEGINNING = "setup/"

Line = dict[str, Any]  # the entries of one line, by tag
Curves = dict[str, list[tuple[int, float]]]  # (step, value) points, by tag


def read_lines(folder: Path, *, having: str = "") -> list[Line]:
    """Read a run's metrics.jsonl in order; return an empty list if the file does not exist.

    If the last line has no line end, it is skipped: a killed process may leave such a line.

    Args:
        folder: the run's folder.
        having: a tag; lines without it are skipped before they are parsed. Empty for every line.

    Raises UserError if a line is not a JSON object with a step.
    """
    path = folder / FILE
    if not path.is_file():
        return []

    wanted = json.dumps(having).encode() if having else b""
    lines = []
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        if wanted in text:
            line = _parsed(text, folder, number)
            # The bytes of the tag may also appear in a table.
            if not having or having in line:
                lines.append(line)
    return lines


def _parsed(text: bytes, folder: Path, number: int) -> Line:
    """Parse a line, whose number counts from 1; UserError unless it is a JSON object with a step."""
    try:
        line = json.loads(text)
    except ValueError:
        line = None
    if not isinstance(line, dict) or type(line.get(STEP)) is not int:
        raise UserError(
            f"line {number} of {folder / FILE} is not a JSON object with a step; move the file away"
        )
    return line


def tags_of(line: Line) -> dict[str, Any]:
    """Return the entries of a line by tag, without its step and time."""
    return {tag: value for tag, value in line.items() if tag not in (STEP, TIME)}


def is_number(value: object) -> bool:
    """Whether the value of a tag is a point of a curve."""
    return isinstance(value, int | float)


def curves_of(lines: Sequence[Line]) -> Curves:
    """Return the points of every curve by tag, sorted by step."""
    curves: Curves = {}
    # A step that was not applied is logged one step late.
    for line in sorted(lines, key=lambda line: line[STEP]):
        for tag, value in tags_of(line).items():
            if is_number(value):
                curves.setdefault(tag, []).append((line[STEP], value))
    return curves


def picture_path(folder: Path, value: object) -> Path | None:
    """Return the picture file, in a run's folder, that a tag's value names; None if the value is not a picture."""
    if not isinstance(value, dict) or not isinstance(value.get("picture"), str):
        return None
    # Use only the file's name: a line in somebody else's run must not point to a file elsewhere.
    return folder / PICTURES / Path(value["picture"]).name


@contextmanager
def dropping_later_lines(folder: Path, step: int, *, validated: bool) -> Iterator[list[Line]]:
    """Remove entries from a run's metrics.jsonl and pictures/ that the run logs again when it resumes at a step.

    These are all entries after the step, the description of the run, and the step's own validation unless `validated`.
    Yields the remaining lines. The new file is written before the block and replaces the old file after it, so that an
    error in the block changes nothing.
    """
    remaining = []
    for line in read_lines(folder):
        kept = {tag: value for tag, value in line.items() if not tag.startswith(BEGINNING)}
        if line[STEP] == step and not validated:
            kept = {tag: value for tag, value in kept.items() if not tag.startswith(VALIDATION)}
        if line[STEP] <= step and tags_of(kept):
            remaining.append(kept)

    if not (folder / FILE).is_file():
        yield remaining
        return
    with replacing(folder / FILE) as file:
        for line in remaining:
            file.write(line_of(line))
        flush_file(file)  # a full disk raises its error before the block
        yield remaining

    named = {picture_path(folder, value) for line in remaining for value in tags_of(line).values()}
    for path in (folder / PICTURES).glob("*"):
        if path.is_file() and path not in named:
            path.unlink()


def line_of(entries: Line) -> bytes:
    """Return entries as a line of metrics.jsonl."""
    return f"{json.dumps(entries)}\n".encode()
