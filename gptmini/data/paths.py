"""Which files a user means by a path: a file, a folder, a glob, standard input, or a list of these."""

import atexit
import codecs
import glob
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from gptmini.data.opening import ending_of, format_of
from gptmini.data.outputs import is_own_file, is_own_folder
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


@dataclass(frozen=True)
class FoundFiles:
    """The files that a user means, and what was left out of folders."""

    # Each once, in the order in which they were named, and by name below a folder or a glob.
    files: list[Path] = field(default_factory=list)
    left_out: list[Path] = field(default_factory=list)  # files that hold no text
    own: list[Path] = field(default_factory=list)  # files and folders that gptmini has written
    unreadable: list[Path] = field(default_factory=list)  # folders

    def notes(self) -> list[str]:
        """A line for each kind of what was left out."""
        return [
            *note_on(self.left_out, "left out: no readable text"),
            *note_on(self.own, "left out: written by gptmini", noun="path"),
            *note_on(self.unreadable, "left out: not readable", noun="folder"),
        ]


def find_files(key: str, paths: Paths, *, takes_own: bool = False) -> FoundFiles:
    """Find the files that a user means by a path or by a list of paths.

    Args:
        key: what an error message calls the value, as data.path.
        paths: a file, a folder, a glob, - for standard input, or a list of them. A file that is named is taken
            whatever its name is. Of a folder and the folders in it, linked ones too, the files that hold text are
            taken, without those whose names begin with a dot. What gptmini has written is left out of folders and
            globs.
        takes_own: whether globs may match what gptmini has written.

    Raises UserError: nothing is there, or the name of a file says that it holds no text.
    """
    several = paths if isinstance(paths, list) else [paths]
    if not several:
        raise UserError(f"{key} must name a file, a folder or a glob, got an empty list")

    # A dict keeps the order, and each file once, under the name that comes first.
    files: dict[tuple[int, int], Path] = {}
    all_found = [_find(key, str(path), takes_own) for path in several]
    for found in all_found:
        for file in found.files:
            files.setdefault(_identity_of(file), file)
    return FoundFiles(
        files=list(files.values()),
        left_out=[path for found in all_found for path in found.left_out],
        own=[path for found in all_found for path in found.own],
        unreadable=[path for found in all_found for path in found.unreadable],
    )


def without_held_out(files: Sequence[Path], held_out: Sequence[Path]) -> list[Path]:
    """The files that are not among the held-out ones, by whatever name or link; UserError if none is left."""
    apart = {_identity_of(file) for file in held_out}
    rest = [file for file in files if _identity_of(file) not in apart]
    if not rest:
        raise UserError("data.path must name more than the files of data.val_path, and does not")
    return rest


def note_on(files: Sequence[Path], what: str, *, noun: str = "file") -> list[str]:
    """A line on what was done with files, as: 1 file was left out: a.txt. No line where there is no file."""
    if not files:
        return []
    subject = f"1 {noun} was" if len(files) == 1 else f"{len(files):,} {noun}s were"
    return [f"{subject} {what}: {names_of(files)}"]


def names_of(files: Sequence[object], most: int = SHOWN) -> str:
    """The first names of files, or of others, and how many more there are."""
    names = ", ".join(str(file) for file in files[:most])
    more = len(files) - most
    return f"{names}, and {more:,} more" if more > 0 else names


def _identity_of(file: Path) -> tuple[int, int]:
    """Device and number of a file, by which the system knows it."""
    status = file.stat()
    return status.st_dev, status.st_ino


def _find(key: str, path: str, takes_own: bool) -> FoundFiles:
    """Find the files that one path means; arguments and errors as for find_files."""
    if not path:  # Python would take the current folder
        raise UserError(
            f"{key} must be a file, a folder or a glob, got an empty name; . is the current folder"
        )
    if path == STANDARD_INPUT:
        return FoundFiles([_standard_input()])

    given = Path(path).expanduser()
    if given.is_dir():
        return _find_in_folder(key, given)
    if given.exists() and not given.is_file():  # a pipe could be read only once
        raise UserError(f"{key} must be a regular file or a folder, got {path}, which is neither")
    if given.is_file():
        found = FoundFiles([given])
    else:
        found = _find_by_glob(key, given, takes_own)

    for file in found.files:
        remedy = REFUSED.get(ending_of(file))
        if remedy is not None:
            raise UserError(f"{key} must name text, got {file}; {remedy}")
    return found


def _find_by_glob(key: str, pattern: Path, takes_own: bool) -> FoundFiles:
    """Find the files that a glob matches."""
    # For glob.glob, as for a shell, a star stands for no name that begins with a dot; for Path.glob it does.
    names = glob.glob(str(pattern), recursive=True)  # noqa: PTH207
    files = sorted(file for file in map(Path, names) if file.is_file())
    found = FoundFiles()
    # Folders above the first star are named by the user.
    named = set(Path(*takewhile(lambda part: not glob.has_magic(part), pattern.parts), "x").parents)
    is_own = cache(is_own_folder)
    for file in files:
        below = [folder for folder in reversed(file.parents) if folder not in named]
        own = [folder for folder in below if is_own(folder)]
        if is_own_file(file):
            own.append(file)
        if own and not takes_own:
            found.own.append(own[0])
        else:
            found.files.append(file)

    if not files:
        raise UserError(
            f"{key} must be a file, a folder or a glob that matches, got {pattern}, which does not exist"
        )
    found = replace(found, own=list(dict.fromkeys(found.own)))
    if not found.files:
        raise UserError(f"{key} must match text, got {pattern}; {found.notes()[0]}")
    return found


def _find_in_folder(key: str, folder: Path) -> FoundFiles:
    """Find the files below a folder that hold text."""
    found = FoundFiles()
    for file in sorted(_walk(folder, found)):
        if not file.is_file():
            continue
        if is_own_file(file):
            found.own.append(file)
        elif _holds_text(file):
            found.files.append(file)
        else:
            found.left_out.append(file)

    if not found.files:
        reasons = "; ".join(["", *found.notes()])
        raise UserError(
            f"{key} must hold files of text, got the folder {folder} with none{reasons}"
        )
    return found


def _walk(root: Path, found: FoundFiles) -> Iterator[Path]:
    """Every file below a folder that is not hidden, each folder once by whatever link; adds to own and unreadable.

    Links are followed after the folders that lie there themselves, so that a folder that is linked too keeps its name.
    """

    def note_error(error: OSError) -> None:
        folder = Path(os.fsdecode(error.filename))
        if folder == root:
            raise error
        found.unreadable.append(folder)

    seen: set[tuple[int, int]] = set()
    starts = deque([root])  # the folder itself, and links to others
    while starts:
        for place, subfolders, names in os.walk(starts.popleft(), onerror=note_error):
            folder = Path(place)
            identity = _identity_of(folder)
            is_known = identity in seen
            seen.add(identity)
            if is_known or is_own_folder(folder, names):
                if not is_known:
                    found.own.append(folder)
                subfolders.clear()
                continue

            shown = sorted(name for name in subfolders if not name.startswith("."))
            links = {name for name in shown if (folder / name).is_symlink()}
            starts += [folder / name for name in shown if name in links]
            # os.walk goes on into the folders that are left in its list.
            subfolders[:] = [name for name in shown if name not in links]
            yield from (Path(place, name) for name in names if not name.startswith("."))


def _holds_text(file: Path) -> bool:
    """Whether a file holds records or is packed, or begins as UTF-8 without zero bytes, or with a mark of UTF-16."""
    if ending_of(file) in LEFT_OUT:
        return False
    kind, packing = format_of(file)
    if kind != "text" or packing:
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

    A text is read several times, and a pipe only once.
    Raises UserError: nothing is piped.
    """
    folder = Path(tempfile.mkdtemp(prefix="gptmini-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "stdin.txt"
    with naming(path), path.open("wb") as file:
        if sys.stdin is not None and not sys.stdin.isatty():
            shutil.copyfileobj(sys.stdin.buffer, file)
    # Raised here, so that only a text is kept for the next call.
    if not path.stat().st_size:
        raise UserError("the path - stands for piped text, and none was piped; pipe a text in")
    return path
