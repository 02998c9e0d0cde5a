"""Which files a user means by a path: a file, a folder, a glob, or a list of these."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gptmini.checks import UserError
from gptmini.data.sources.formats import REFUSED, ending_of, format_of
from gptmini.data.sources.standard_input import NAME as STANDARD_INPUT
from gptmini.data.sources.standard_input import standard_input

SNIFFED = 2**13  # bytes at a file's beginning that tell whether it is text
SHOWN = 3  # names of files that were left out which a note gives


class FoundFiles(NamedTuple):
    """The files that a user means."""

    # Each once, in the order in which they were named, and by name below a folder or a glob.
    files: list[Path]
    left_out: list[Path]  # files of folders and globs that hold no text

    def note(self) -> str | None:
        """A line about the files that were left out; None if there are none."""
        if not self.left_out:
            return None
        n = len(self.left_out)
        names = ", ".join(str(file) for file in self.left_out[:SHOWN])
        more = ", ..." if n > SHOWN else ""
        subject = "1 file was" if n == 1 else f"{n:,} files were"
        return f"{subject} left out for want of text that can be read: {names}{more}"


def find_files(key: str, paths: object) -> FoundFiles:
    """Find the files that a user means by a path or by a list of paths.

    Args:
        key: what an error message calls the value, as data.path.
        paths: a file, a folder, a glob, - for standard input, or a list of them. A file that is named is taken
            whatever its name is. Of a folder and the folders in it, the files that hold text are taken, without those
            whose names begin with a dot.

    Raises UserError: nothing is there, or a file that was named holds no text.
    """
    several = paths if isinstance(paths, Sequence) and not isinstance(paths, str) else [paths]
    if not several:
        raise UserError(f"{key} must name a file, a folder or a glob, got an empty list")

    # A dict keeps the order, and each file once.
    files: dict[Path, None] = {}
    left_out: dict[Path, None] = {}
    for path in several:
        # A configuration may make a number of a name that is all digits.
        found = _find(key, str(path))
        files.update(dict.fromkeys(found.files))
        left_out.update(dict.fromkeys(found.left_out))
    return FoundFiles(list(files), list(left_out))


def _find(key: str, path: str) -> FoundFiles:
    """Find the files that one path means; errors as for find_files."""
    if not path:
        raise UserError(
            f"{key} must be a file, a folder or a glob, got an empty name; . is the current folder"
        )

    if path == STANDARD_INPUT:
        return FoundFiles([standard_input()], [])

    given = Path(path).expanduser()
    if given.is_dir():
        return _find_in_folder(key, given)
    if given.exists() and not given.is_file():
        raise UserError(f"{key} must be a regular file or a folder, got {path}, which is neither")
    if given.is_file():
        _check_is_text(key, given)
        return FoundFiles([given], [])

    files = []
    left_out = []
    for file in _matches(key, given):
        (files if file.stat().st_size else left_out).append(file)
    if not files:
        raise UserError(
            f"{key} must be a file, a folder or a glob that matches, got {path}, which does not exist"
        )
    for file in files:
        _check_is_text(key, file)
    return FoundFiles(files, left_out)


def _find_in_folder(key: str, folder: Path) -> FoundFiles:
    """Find the files below a folder that hold text."""
    files = []
    left_out = []
    for file in _walk(folder):
        holds_text = ending_of(file) not in REFUSED and (
            format_of(file).is_structured or _is_text(file)
        )
        (files if holds_text else left_out).append(file)
    if not files:
        raise UserError(f"{key} must hold files of text, got the folder {folder} with none")
    return FoundFiles(files, left_out)


def _walk(folder: Path) -> Iterator[Path]:
    """Files below a folder in the order of their names; names that begin with a dot are passed over."""
    found = []
    for place, subfolders, names in os.walk(folder):
        # os.walk goes on into the folders that are left in its list.
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".")]
    return iter(sorted(file for file in found if file.is_file()))


def _is_text(file: Path) -> bool:
    """Whether a file begins as UTF-8 without zero bytes, or with a mark of UTF-16; an empty file is no text."""
    with file.open("rb") as opened:
        data = opened.read(SNIFFED)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return True
    if not data or b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError as error:
        # The last character may be cut in two.
        return len(data) == SNIFFED and error.start > len(data) - 4
    return True


def _matches(key: str, pattern: Path) -> list[Path]:
    """The files that a glob matches, by name; UserError if it is no glob, as a**.txt."""
    try:
        found = Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))
        return sorted(file for file in found if file.is_file())
    except ValueError as error:  # pathlib's, of a pattern that it cannot read
        raise UserError(
            f"{key} must be a file, a folder or a glob, got {pattern} ({error})"
        ) from None


def _check_is_text(key: str, file: Path) -> None:
    """Raise UserError for a file whose name says that it holds no text that can be read."""
    remedy = REFUSED.get(ending_of(file))
    if remedy is not None:
        raise UserError(f"{key} must name text, got {file}; {remedy}")
