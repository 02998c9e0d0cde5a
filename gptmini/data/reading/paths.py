"""Find the files of a path that a user gives: a file, a folder, a glob, standard input, or a list of these."""

import atexit
import codecs
import glob
import os
import re
import shlex
import shutil
import sys
import tempfile
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from gptmini.console.names import names_of
from gptmini.data.reading.opening import PACKED, ending_of, format_of
from gptmini.data.reading.outputs import is_own_file, is_own_folder
from gptmini.system.errors import UserError
from gptmini.system.files import exists, naming

STANDARD_INPUT = "-"  # the path of standard input, as in other programs
SNIFFED = 2**13  # bytes at the start of a file that decide whether the file is text
# Characters. The name of a prepared folder then fits into half a line of a terminal.
LONGEST_SHORT_NAME = 30
# gptmini cannot read text from files with these extensions. A model would learn the syntax of JSON from .json files.
PACKAGES = (".lz4", ".zip", ".7z", ".rar", ".tar", ".tgz")
DOCUMENTS = (".json", ".arrow", ".pdf", ".doc", ".docx", ".odt", ".epub")
REFUSED = {*PACKAGES, *DOCUMENTS}
# Commands that write the text of a document into a new file.
PANDOC = "pandoc --to=plain --wrap=none --output={text} {file}"
CONVERTERS = {".pdf": "pdftotext {file} {text}", ".docx": PANDOC, ".odt": PANDOC, ".epub": PANDOC}
# Files with these extensions are skipped in a folder. gptmini and other programs write files with the last three
# extensions into folders that contain text.
LEFT_OUT = {*REFUSED, ".bin", ".index", ".ckpt"}


def _paths(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    # Raise one error, not one error for each type of path.
    try:
        return validate(value)
    except ValidationError:
        raise ValueError("must be a path or a list of paths") from None


# The type of the paths that find_files accepts.
Paths = Annotated[str | Path | list[str | Path], WrapValidator(_paths)]


@dataclass(frozen=True)
class FoundFiles:
    """The files that match a path, and the files and folders that were skipped."""

    # Each file appears once. Paths keep the order of the command line. Files of a folder or a glob are sorted by name.
    files: list[Path] = field(default_factory=list)
    without_text: list[Path] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)  # files and folders that gptmini wrote
    unreadable: list[Path] = field(default_factory=list)  # files and folders that may not be read

    def notes(self) -> list[str]:
        """Return one line for each reason why files were skipped."""
        return [
            *note_about(self.without_text, "skipped (no readable text)"),
            *note_about(self.written, "skipped (written by gptmini)", noun="path"),
            *note_about(self.unreadable, "skipped (not readable)", noun="path"),
        ]


def find_files(key: str, paths: Paths, *, takes_own: bool = False) -> FoundFiles:
    """Find the files of a path or of a list of paths.

    Args:
        key: name of the configuration key in error messages, such as data.path.
        paths: a file, a folder, a glob, "-" for standard input, or a list of these. In a folder, all files with text
            are found, at any depth and through links. Hidden files and files that gptmini wrote are skipped.
        takes_own: whether globs may match files that gptmini wrote.

    Raises UserError if no file is found, or if the extension of a file is not supported.
    """
    path_list = paths if isinstance(paths, list) else [paths]
    if not path_list:
        raise UserError(f"{key} must be a file, folder or glob, got an empty list")

    files: dict[tuple[int, int], Path] = {}
    result = FoundFiles()
    for path in path_list:
        of_path = _find(key, str(path), takes_own)
        for file in of_path.files:
            files.setdefault(_identity_of(file), file)  # keep the first name of a file
        result.without_text.extend(of_path.without_text)
        result.written.extend(of_path.written)
        result.unreadable.extend(of_path.unreadable)
    result.files.extend(files.values())
    return result


def hold_out(files: Sequence[Path], held_out: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the files that are not held out, and a note on the others. Raise UserError if all files are held out."""
    # A held-out file may have a different name in `files`, or may be a link.
    held_out_ids = {_identity_of(file) for file in held_out}
    in_both = [file for file in files if _identity_of(file) in held_out_ids]
    rest = [file for file in files if _identity_of(file) not in held_out_ids]
    if not rest:
        raise UserError(
            "data.path has no files left to train on, because data.val_path holds out all files of data.path"
        )
    return rest, note_about(in_both, "held out (also in data.val_path)")


def note_about(files: Sequence[Path], what: str, *, noun: str = "file") -> list[str]:
    """Return a list with a line such as "1 file was skipped: a.txt". Return an empty list if `files` is empty."""
    if not files:
        return []
    subject = f"1 {noun} was" if len(files) == 1 else f"{len(files):,} {noun}s were"
    return [f"{subject} {what}: {names_of(files)}"]


def short_name(paths: Paths) -> str:
    """Return a name for the text of a path. It consists of lower-case ASCII letters, digits and dashes, or is empty.

    The name of books/*.txt is "books", and the name of a.txt and two more paths is "a-and-2-more".
    """
    first, *others = [str(path) for path in (paths if isinstance(paths, list) else [paths])]
    more = f"-and-{len(others)}-more" if others else ""
    name = _name_of_path(first)[: LONGEST_SHORT_NAME - len(more)].strip("-")
    return f"{name}{more}" if name else ""


def _name_of_path(path: str) -> str:
    if path == STANDARD_INPUT:
        return "stdin"
    is_there = exists(str(Path(path).expanduser()))
    # The name of a glob is the name before its first star.
    start = path if is_there else re.split(r"[*?[]", path, maxsplit=1)[0]
    given = Path(start).expanduser()
    if is_there and given.name in ("", ".."):  # such as . or ..
        given = given.resolve()
    name = given.name
    if not (is_there and given.is_dir()):
        name = Path(given.stem).stem if given.suffix.lower() in PACKED else given.stem
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


def _identity_of(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_dev, status.st_ino


def _find(key: str, path: str, takes_own: bool) -> FoundFiles:
    if not path:  # Path("") would be the current folder
        raise UserError(
            f"{key} must be a file, folder or glob, got an empty path; write . for the current folder"
        )
    if path == STANDARD_INPUT:
        return FoundFiles([_standard_input()])

    given = Path(path).expanduser()
    if not exists(str(given)):
        result = _find_by_glob(key, given, takes_own)
    elif given.is_dir():
        return _find_in_folder(key, given)
    elif given.is_file():
        result = FoundFiles([given])
    else:  # a pipe can be read only once
        raise UserError(f"{key} must be a regular file or a folder, got {path}")

    for file in result.files:
        refuse_ending(key, file)
    return result


def refuse_ending(key: str, file: Path, first: str = "") -> None:
    """Raise UserError if gptmini does not read files with the extension of `file`. `first` precedes the remedy."""
    ending = ending_of(file)
    if ending not in REFUSED:
        return
    remedy = "decompress the file" if ending in PACKAGES else "convert it to .txt or .jsonl"
    if file.suffix.lower() in CONVERTERS:
        names = {"file": shlex.quote(str(file)), "text": shlex.quote(str(file.with_suffix(".txt")))}
        remedy = f"run: {CONVERTERS[ending].format(**names)}"
    raise UserError(f"{key} does not support {ending} files, got {file}; {first}{remedy}")


def _find_by_glob(key: str, pattern: Path, takes_own: bool) -> FoundFiles:
    # In glob.glob, as in a shell, a star does not match hidden names. In Path.glob, a star matches hidden names.
    names = glob.glob(str(pattern), recursive=True)  # noqa: PTH207
    files = sorted(file for file in map(Path, names) if file.is_file())
    if not files:
        raise UserError(f"{key} must match a file or a folder, got {pattern}")
    if takes_own:
        return FoundFiles(files)

    result = FoundFiles()
    # The user gave the names of the folders before the first star, so these folders are not skipped.
    named = set(Path(*takewhile(lambda part: not glob.has_magic(part), pattern.parts), "x").parents)
    is_own = cache(is_own_folder)
    for file in files:
        if not os.access(file, os.R_OK):
            result.unreadable.append(file)
            continue
        outputs = [folder for folder in file.parents if folder not in named and is_own(folder)]
        outputs += [file] if is_own_file(file) else []
        if not outputs:
            result.files.append(file)
        elif outputs[0] not in result.written:
            result.written.append(outputs[0])
    if not result.files:
        raise UserError(f"{key} must match a text file, got {pattern}; {result.notes()[0]}")
    return result


def _find_in_folder(key: str, folder: Path) -> FoundFiles:
    result = FoundFiles()
    for file in sorted(_walk(folder, result)):
        if not os.access(file, os.R_OK):
            result.unreadable.append(file)
        elif is_own_file(file):
            result.written.append(file)
        elif _holds_text(file):
            result.files.append(file)
        else:
            result.without_text.append(file)

    if not result.files:
        reasons = "; ".join(["", *result.notes()])
        raise UserError(f"{key} must contain a text file, got the folder {folder}{reasons}")
    return result


def _walk(root: Path, skipped: FoundFiles) -> Iterator[Path]:
    """Yield every file in a folder, at any depth and through links, except hidden files. Note the skipped folders.

    Each folder is visited once, although links may form a loop.
    """
    seen: set[tuple[int, int]] = set()
    for place, subfolders, names in os.walk(
        root,
        onerror=lambda error: skipped.unreadable.append(Path(os.fsdecode(error.filename))),
        followlinks=True,
    ):
        folder = Path(place)
        identity = _identity_of(folder)
        if identity in seen:
            subfolders.clear()
        elif is_own_folder(folder):
            skipped.written.append(folder)
            subfolders.clear()
        else:
            # os.walk visits only the folders that stay in this list. Links come last, because a link may point to
            # another folder of the list.
            visible = [name for name in subfolders if not name.startswith(".")]
            subfolders[:] = sorted(visible, key=lambda name: ((folder / name).is_symlink(), name))
            files = (folder / name for name in names if not name.startswith("."))
            yield from (file for file in files if file.is_file())
        seen.add(identity)


def _holds_text(file: Path) -> bool:
    if ending_of(file) in LEFT_OUT:
        return False
    kind, packing = format_of(file)
    if kind != "text" or packing:
        return True

    with file.open("rb") as content:
        data = content.read(SNIFFED)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    try:
        # In a longer file, the last character may be incomplete.
        codecs.getincrementaldecoder("utf-8")().decode(data, final=len(data) < SNIFFED)
    except UnicodeDecodeError:
        return False
    return data != b"" and b"\0" not in data


def copied_stdin() -> Path | None:
    """Return the file with the text of stdin, or None if this process has not read a text from stdin."""
    return _standard_input() if _standard_input.cache_info().currsize else None


@cache
def _standard_input() -> Path:
    # Text is read several times, so copy it to a temporary file.
    folder = Path(tempfile.mkdtemp(prefix="gptmini-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "stdin.txt"
    with naming(path), path.open("wb") as file:
        if sys.stdin is not None and not sys.stdin.isatty():
            shutil.copyfileobj(sys.stdin.buffer, file)
    # Raise inside the cached function, so that the cache keeps only a file with text.
    if not path.stat().st_size:
        raise UserError("the path '-' reads stdin, but stdin is empty; pipe text into the command")
    return path
