"""Recognise what gptmini wrote, so that it does not train on its own output.

| kind | recognised by |
|---|---|
| run, `runs/latest` | `config.yaml` that starts with the lines `version:` and `begun:` or `typed:` |
| sweep | `sweep.yaml` that starts with gptmini's heading |
| prepared text | `meta.json` with the keys of a prepared folder |
| export | `config.json`, and a `README.md` with `exported by gptmini` |
| report | `.html` that starts with the header of every report; `.csv` that starts with the columns of a run's curves |

gptmini opens only files with these names or extensions.
"""

import re
from pathlib import Path

from gptmini.system.errors import UserError
from gptmini.system.untrusted import is_run_config, read_json

HEAD = 2**13  # bytes at the start of a file that are searched
SWEEP = b"# All runs of this sweep of gptmini "
PREPARED = {"format", "source", "builder", "fingerprint"}
EXPORT = re.compile(rb"---\n(?s:.*)\bexported by gptmini \d")
PAGE = (
    b'<!doctype html>\n<html lang=en><head><meta charset="utf-8">\n'
    b'<meta http-equiv="Content-Security-Policy"\n'
    b"  content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">"
)
CURVES = re.compile(rb"step,(.*,)?(train|val|work|weights)/")


def is_own_folder(folder: Path) -> bool:
    """Return whether gptmini wrote a folder."""
    has_model = (folder / "config.json").is_file()
    return (
        is_run_config(folder / "config.yaml")
        or _head(folder / "sweep.yaml").startswith(SWEEP)
        or is_prepared(folder)
        or (has_model and EXPORT.match(_head(folder / "README.md")) is not None)
    )


def is_own_file(file: Path) -> bool:
    """Return whether gptmini wrote a single file. Such a file is a report or contains the curves of a run."""
    kind = file.suffix.lower()
    if kind == ".html":
        return _head(file).startswith(PAGE)
    return kind == ".csv" and CURVES.match(_head(file)) is not None


def is_prepared(folder: Path) -> bool:
    """Return whether a folder is a prepared folder. Check the keys, because other programs write a meta.json too."""
    path = folder / "meta.json"
    try:
        return path.is_file() and set(read_json(path)) >= PREPARED
    except (UserError, OSError):
        return False


def _head(path: Path) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(HEAD)
