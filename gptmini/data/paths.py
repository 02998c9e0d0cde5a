"""Which files a user means by a path: a file, a folder, a glob, standard input, or a list of these."""

import atexit
import codecs
import glob
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from gptmini.data.opening import ending_of, format_of
from gptmini.files import naming
from gptmini.user_error import UserError

STANDARD_INPUT = "-"  # the path that stands for standard input, as in other programs
SNIFFED = 2**13  # bytes at a file's beginning that tell whether it is text
SHOWN = 3  # names that a note gives of several files
# What to do first with a file that is not read, by its ending. A model would learn the syntax of JSON, and the bytes of
# the others are no text.
UNPACK = "unpack it first"
CONVERT = "convert it to a .txt file"
REFUSED = (
    dict.fromkeys((".lz4", ".zip", ".7z", ".rar", ".tar", ".tgz"), UNPACK)
    | dict.fromkeys((".arrow", ".pdf", ".doc", ".docx", ".odt", ".epub"), CONVERT)
    | {
        ".json": "write a record on each line of a .jsonl file, or rename it to .txt to train on it as it is"
    }
)
# Files of a folder that are passed over: those, and what gptmini and others write beside text, of any content.
LEFT_OUT = {*REFUSED, ".bin", ".index", ".ckpt"}


def _paths(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Return a path or a list of paths; ValueError for anything else, instead of an error for each type of path."""
    try:
        return validate(value)
    except ValidationError:
        raise ValueError("must be a path or a list of paths") from None


# What a user means by several files, as find_files takes them.
Paths = Annotated[str | Path | list[str | Path], WrapValidator(_paths)]


class FoundFiles(NamedTuple):
    """The files that a user means."""

    # Each once, in the order in which they were named, and by name below a folder or a glob.
    files: list[Path]
    left_out: list[Path]  # files of folders that hold no text


def find_files(key: str, paths: Paths) -> FoundFiles:
    """Find the files that a user means by a path or by a list of paths.

    Args:
        key: what an error message calls the value, as data.path.
        paths: a file, a folder, a glob, - for standard input, or a list of them. A file that is named is taken
            whatever its name is. Of a folder and the folders in it, the files that hold text are taken, without those
            whose names begin with a dot.

    Raises UserError: nothing is there, or the name of a file says that it holds no text.
    """
    several = paths if isinstance(paths, list) else [paths]
    if not several:
        raise UserError(f"{key} must name a file, a folder or a glob, got an empty list")

    # A dict keeps the order, and each file once, under the name that comes first.
    files: dict[tuple[int, int], Path] = {}
    left_out: list[Path] = []
    for path in several:
        found = _find(key, str(path))
        left_out += found.left_out
        for file in found.files:
            files.setdefault(_identity_of(file), file)
    return FoundFiles(list(files.values()), left_out)


def without_held_out(files: Sequence[Path], held_out: Sequence[Path]) -> list[Path]:
    """The files that are not among the held-out ones, by whatever name or link; UserError if none is left."""
    apart = {_identity_of(file) for file in held_out}
    rest = [file for file in files if _identity_of(file) not in apart]
    if not rest:
        raise UserError("data.path must name more than the files of data.val_path, and does not")
    return rest


def note_on(files: Sequence[Path], what: str) -> list[str]:
    """A line on what was done with files, as: 1 file was left out: a.txt. No line where there is no file."""
    if not files:
        return []
    subject = "1 file was" if len(files) == 1 else f"{len(files):,} files were"
    return [f"{subject} {what}: {names_of(files)}"]


def names_of(files: Sequence[Path]) -> str:
    """The first names of files, and how many more there are."""
    names = ", ".join(str(file) for file in files[:SHOWN])
    more = len(files) - SHOWN
    return f"{names}, and {more:,} more" if more > 0 else names


def _identity_of(file: Path) -> tuple[int, int]:
    """Device and number of a file, by which the system knows it."""
    status = file.stat()
    return status.st_dev, status.st_ino


def _find(key: str, path: str) -> FoundFiles:
    """Find the files that one path means; errors as for find_files."""
    if not path:  # Python would take the current folder
        raise UserError(
            f"{key} must be a file, a folder or a glob, got an empty name; . is the current folder"
        )
    if path == STANDARD_INPUT:
        piped = _standard_input()
        if not piped.stat().st_size:
            raise UserError(f"{key}=- reads the text that is piped into the command, and got none")
        return FoundFiles([piped], [])

    given = Path(path).expanduser()
    if given.is_dir():
        return _find_in_folder(key, given)
    if given.exists() and not given.is_file():  # a pipe could be read only once
        raise UserError(f"{key} must be a regular file or a folder, got {path}, which is neither")

    # For glob.glob, as for a shell, a star stands for no name that begins with a dot; for Path.glob it does.
    names = [given] if given.is_file() else glob.glob(str(given), recursive=True)  # noqa: PTH207
    files = sorted(file for file in map(Path, names) if file.is_file())
    if not files:
        raise UserError(
            f"{key} must be a file, a folder or a glob that matches, got {path}, which does not exist"
        )
    for file in files:
        remedy = REFUSED.get(ending_of(file))
        if remedy is not None:
            raise UserError(f"{key} must name text, got {file}; {remedy}")
    return FoundFiles(files, [])


def _find_in_folder(key: str, folder: Path) -> FoundFiles:
    """Find the files below a folder that hold text."""
    found = []
    for place, subfolders, names in os.walk(folder):
        # os.walk goes on into the folders that are left in its list.
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".")]

    files = []
    left_out = []
    for file in sorted(found):
        if file.is_file():
            (files if _holds_text(file) else left_out).append(file)
    if not files:
        raise UserError(f"{key} must hold files of text, got the folder {folder} with none")
    return FoundFiles(files, left_out)


def _holds_text(file: Path) -> bool:
    """Whether a file holds records or is packed, or begins as UTF-8 without zero bytes, or with a mark of UTF-16."""
    if ending_of(file) in LEFT_OUT:
        return False
    if format_of(file).is_structured:
        return True

    with file.open("rb") as opened:
        data = opened.read(SNIFFED)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    try:
        # Of a longer file, the last character may be cut in two.
        codecs.getincrementaldecoder("utf-8")().decode(data, final=len(data) < SNIFFED)
    except UnicodeDecodeError:
        return False
    return data != b"" and b"\0" not in data


@cache
def _standard_input() -> Path:
    """The file that holds what was piped into this process; it is deleted when the process ends.

    A text is read several times, and a pipe only once. The file is empty if nothing is piped.
    """
    folder = Path(tempfile.mkdtemp(prefix="gptmini-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "stdin.txt"
    with naming(path), path.open("wb") as file:
        if sys.stdin is not None and not sys.stdin.isatty():
            shutil.copyfileobj(sys.stdin.buffer, file)
    return path
