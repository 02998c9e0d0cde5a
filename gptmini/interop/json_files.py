"""JSON files of others, read with a limit to their size."""

import json
from pathlib import Path

from gptmini.user_error import UserError

LARGEST_JSON = 2**28  # bytes; the largest vocabularies take a tenth of it


def check_size(path: Path) -> None:
    """Raise UserError unless a file is there and of a size that is read whole."""
    if not path.is_file():
        raise UserError(f"{path} must be there, and it is not")
    if path.stat().st_size > LARGEST_JSON:
        raise UserError(f"{path} must have at most {LARGEST_JSON:,} bytes, and has more")


def read_json(path: Path) -> dict:
    """The object that a JSON file holds; UserError for anything else."""
    check_size(path)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} must be JSON ({error})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold an object, got {values!r:.80}")
    return values
