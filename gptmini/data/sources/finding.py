"""Which files a user means by a path: a file, a folder, a glob, or a list of these."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from gptmini.data.meta import is_prepared
from gptmini.data.sources.formats import REFUSED, ending_of, format_of
from gptmini.data.sources.standard_input import NAME as STANDARD_INPUT
from gptmini.data.sources.standard_input import standard_input
from gptmini.user_error import UserError

SNIFFED = 2**13  # bytes at a file's beginning that tell whether it is text
SHOWN = 3  # names that a note gives of what was left out
RUN_CONFIG = b"# of gptmini, which wrote this run"  # in the first line of the config.yaml of a run


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
    left_out: list[Path]  # files of folders and globs that hold no text
    own: list[Path]  # folders that gptmini wrote, of which nothing is taken

    def notes(self) -> list[str]:
        """Lines about what was left out; none where everything is taken."""
        notes = []
        if self.left_out:
            subject = _counted(len(self.left_out), "file")
            names = _some(self.left_out)
            notes.append(f"{subject} left out for want of text that can be read: {names}")
        if self.own:
            subject = _counted(len(self.own), "folder")
            notes.append(
                f"{subject} left out as runs or prepared texts of gptmini: {_some(self.own)}"
            )
        return notes


def find_files(key: str, paths: Paths) -> FoundFiles:
    """Find the files that a user means by a path or by a list of paths.

    Args:
        key: what an error message calls the value, as data.path.
        paths: a file, a folder, a glob, - for standard input, or a list of them. A file that is named is taken
            whatever its name is. Of a folder and the folders in it, the files that hold text are taken, without those
            whose names begin with a dot, and without the runs and prepared texts of gptmini that lie in it.

    Raises UserError: nothing is there, or a file that was named holds no text.
    """
    several = paths if isinstance(paths, list) else [paths]
    if not several:
        raise UserError(f"{key} must name a file, a folder or a glob, got an empty list")

    # A dict keeps the order, and each file once, under the name that comes first.
    files: dict[tuple[int, int], Path] = {}
    left_out: dict[Path, None] = {}
    own: dict[Path, None] = {}
    for path in several:
        found = _find(key, str(path))
        for file in found.files:
            files.setdefault(_identity_of(file), file)
        left_out.update(dict.fromkeys(found.left_out))
        own.update(dict.fromkeys(found.own))
    return FoundFiles(list(files.values()), list(left_out), list(own))


def without_held_out(files: Sequence[Path], held_out: Sequence[Path]) -> list[Path]:
    """The files that are not among the held-out ones, by whatever name or link; UserError if none is left."""
    apart = {_identity_of(file) for file in held_out}
    rest = [file for file in files if _identity_of(file) not in apart]
    if not rest:
        raise UserError("data.path must name more than the files of data.val_path, and does not")
    return rest


def notes_on_empty(files: Sequence[Path]) -> list[str]:
    """A line about files without text; none where there are none."""
    if not files:
        return []
    return [f"{_counted(len(files), 'file')} found to hold no text: {_some(files)}"]


def note_on_held_out(n_files: int) -> list[str]:
    """A line about files that path and val_path both name; none where there are none."""
    if not n_files:
        return []
    pronoun = "it" if n_files == 1 else "them"
    return [f"{_counted(n_files, 'file')} held out, because data.val_path names {pronoun} too"]


def _identity_of(file: Path) -> tuple[int, int]:
    """Device and number of a file, by which the system knows it."""
    status = file.stat()
    return status.st_dev, status.st_ino


def _find(key: str, path: str) -> FoundFiles:
    """Find the files that one path means; errors as for find_files."""
    if not path:
        raise UserError(
            f"{key} must be a file, a folder or a glob, got an empty name; . is the current folder"
        )

    if path == STANDARD_INPUT:
        return FoundFiles([standard_input()], [], [])

    given = Path(path).expanduser()
    if _is_own(given):
        _refuse_own(key, path, given)
    if given.is_dir():
        return _find_in_folder(key, given)
    if given.exists() and not given.is_file():
        raise UserError(f"{key} must be a regular file or a folder, got {path}, which is neither")
    if given.is_file():
        _check_is_text(key, given)
        return FoundFiles([given], [], [])

    files = []
    left_out = []
    own: set[Path] = set()
    others: set[Path] = set()  # folders that gptmini did not write
    for file in _matches(key, given):
        for folder in set(file.parents) - own - others:
            (own if _is_own(folder) else others).add(folder)
        if own & set(file.parents):
            continue
        if file.stat().st_size:
            files.append(file)
        else:
            left_out.append(file)
    if not files and own:
        _refuse_own(key, path, min(own))
    if not files:
        raise UserError(
            f"{key} must be a file, a folder or a glob that matches, got {path}, which does not exist"
        )
    for file in files:
        _check_is_text(key, file)
    return FoundFiles(files, left_out, sorted(own))


def _find_in_folder(key: str, folder: Path) -> FoundFiles:
    """Find the files below a folder that hold text."""
    files = []
    left_out = []
    found, own = _walk(folder)
    for file in found:
        holds_text = ending_of(file) not in REFUSED and (
            format_of(file).is_structured or _is_text(file)
        )
        (files if holds_text else left_out).append(file)
    if not files:
        others = f", and with {_some(own)}, which gptmini wrote" if own else ""
        raise UserError(f"{key} must hold files of text, got the folder {folder} with none{others}")
    return FoundFiles(files, left_out, own)


def _walk(folder: Path) -> tuple[list[Path], list[Path]]:
    """Files below a folder in the order of their names, and folders below it that gptmini wrote.

    Names that begin with a dot are passed over.
    """
    found = []
    own = []
    for place, subfolders, names in os.walk(folder):
        if place != str(folder) and _is_own(Path(place)):
            own.append(Path(place))
            subfolders.clear()
            continue
        # os.walk goes on into the folders that are left in its list.
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".")]
    return sorted(file for file in found if file.is_file()), sorted(own)


def _is_own(folder: Path) -> bool:
    """Whether gptmini wrote a folder: a prepared text, or a run."""
    return is_prepared(folder) or _is_run(folder)


def _refuse_own(key: str, path: object, folder: Path) -> NoReturn:
    """Raise UserError for a path that is, or lies in, a folder that gptmini wrote."""
    if not is_prepared(folder):
        raise UserError(f"{key} must be text, got {path}, which is a run of gptmini")
    raise UserError(
        f"{key} must not be what gptmini has prepared, got {path}; to train on it, use data=mixture "
        f"'data.sources={{a: {{path: {folder}, weight: 1}}}}'"
    )


def _is_run(folder: Path) -> bool:
    """Whether a folder is that of a run of gptmini."""
    config = folder / "config.yaml"
    if not config.is_file():
        return False
    with config.open("rb") as file:
        return RUN_CONFIG in file.readline(SNIFFED)


def _counted(n: int, noun: str) -> str:
    """The subject of a sentence about n things."""
    return f"1 {noun} was" if n == 1 else f"{n:,} {noun}s were"


def _some(paths: Sequence[Path]) -> str:
    """The first paths of a list, as a sentence shows them."""
    names = ", ".join(str(path) for path in paths[:SHOWN])
    return f"{names}, ..." if len(paths) > SHOWN else names


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
        # As in a shell, * stands for no name that begins with a dot, and .* does.
        asks_for_hidden = any(part.startswith((".*", ".?", ".[")) for part in pattern.parts)
        return sorted(
            file
            for file in found
            if file.is_file() and (asks_for_hidden or not _is_hidden(file, pattern))
        )
    except ValueError as error:  # pathlib's, of a pattern that it cannot read
        raise UserError(
            f"{key} must be a file, a folder or a glob, got {pattern} ({error})"
        ) from None


def _is_hidden(file: Path, pattern: Path) -> bool:
    """Whether a name that a glob stands for begins with a dot."""
    return any(part.startswith(".") and part not in pattern.parts for part in file.parts)


def _check_is_text(key: str, file: Path) -> None:
    """Raise UserError for a file whose name says that it holds no text that can be read."""
    if is_prepared(file.parent) and file.suffix in (".bin", ".index"):
        _refuse_own(key, file, file.parent)
    remedy = REFUSED.get(ending_of(file))
    if remedy is not None:
        raise UserError(f"{key} must name text, got {file}; {remedy}")
