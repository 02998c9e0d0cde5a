"""Where text comes from: each corpus yields its documents in a fixed order, each with the split that it belongs to."""

import ast
import codecs
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

from gptmini.checks import UserError, number

# Folders of the standard library that hold no documentation: test suites, installed packages, and the topics,
# which are read first and apart.
PYDOC_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "pydoc_data"}
BYTE_ORDER_MARK = "\ufeff"  # with which some editors begin a file in UTF-8
TEXT_SUFFIXES = (".txt", ".md")  # of the files that are taken from a folder

# What to do first with a file that is no plain text, by its suffix. A model would learn the syntax of a table or of
# JSON, and the bytes of the others are no text.
UNPACK = "unpack it first"
EXTRACT = "write its text into a .txt file, or rename it to .txt to train on it as it is"
CONVERT = "convert it to a .txt file"
NO_TEXT = (
    dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".7z", ".tar", ".tgz"), UNPACK)
    | dict.fromkeys((".jsonl", ".ndjson", ".json", ".csv", ".tsv"), EXTRACT)
    | dict.fromkeys((".parquet", ".arrow", ".pdf", ".docx", ".odt", ".epub"), CONVERT)
)


class Document(NamedTuple):
    """One text of a corpus."""

    split: str  # train, or val for text that is held out
    text: str


class Corpus(Protocol):
    """A source of text, as prepare takes it."""

    name: str  # begins the name of the prepared folder

    def identity(self) -> dict:
        """What the documents follow from, in plain JSON types: it changes when any document would."""
        ...

    def documents(self) -> Iterator[Document]:
        """Read every document once, in a fixed order."""
        ...


class PydocCorpus:
    """The documentation in every CPython: help topics, then docstrings of its library, parsed and never imported."""

    name = "pydoc"

    def __init__(self, val_fraction: float) -> None:
        """Hold out about val_fraction of the documents; UserError unless it is above 0 and below 1."""
        self.val_fraction = check_fraction(val_fraction)
        self.root = Path(sysconfig.get_path("stdlib"))

    def identity(self) -> dict:
        """Corpus, split rule, Python version and the digest of every source file."""
        files = [
            (path.relative_to(self.root).as_posix(), sha256_of(path)) for path in self._sources()
        ]
        return {
            "corpus": self.name,
            "val_fraction": self.val_fraction,
            "python": ".".join(map(str, sys.version_info[:3])),
            "sha256": hashlib.sha256(repr(files).encode()).hexdigest(),
        }

    def documents(self) -> Iterator[Document]:
        """Topics by name, then docstrings by module path and line."""
        for text in self._texts:
            yield Document(split_of(text, self.val_fraction), text)

    @cached_property
    def _texts(self) -> list[str]:
        """Every text; kept, because parsing takes seconds and the texts two megabytes."""
        texts: list[str] = []
        for path in self._sources():
            tree = ast.parse(path.read_bytes())
            if path.parent.name == "pydoc_data":
                texts += topics(tree)
            else:
                texts += docstrings(tree)
        return texts

    def _sources(self) -> list[Path]:
        """The file of topics, then the modules of the standard library in the order of their names."""
        modules = []
        for folder, subfolders, files in os.walk(self.root):
            # os.walk goes on into the folders that are left in its list.
            subfolders[:] = [name for name in subfolders if name not in PYDOC_SKIPPED]
            for name in files:
                path = Path(folder, name)
                parts = path.relative_to(self.root).parts
                is_standard = parts[0].removesuffix(".py") in sys.stdlib_module_names
                if is_standard and path.suffix == ".py":
                    modules.append((parts, path))

        topic_file = self.root / "pydoc_data" / "topics.py"
        if not modules or not topic_file.is_file():
            raise UserError(
                f"data=pydoc needs the standard library's sources in {self.root}; "
                "use data=text instead"
            )
        return [topic_file, *(path for _, path in sorted(modules))]


class TextCorpus:
    """UTF-8 files: one file splits by position, several by a hash of each file's text."""

    def __init__(self, path: str | Path, val_fraction: float, name: str = "text") -> None:
        """Take a file, a folder (every .txt and .md file below it) or a glob; UserError if that is no file."""
        self.val_fraction = check_fraction(val_fraction)
        self.name = name
        self.files = find_files(
            str(path)
        )  # a configuration may make a number of a name that is all digits
        self.note: str | None = None  # what a user should know of the text; set once it was read

    def identity(self) -> dict:
        """Corpus, split rule, and each file's digest, in order."""
        return {
            "corpus": self.name,
            "val_fraction": self.val_fraction,
            "files": [_sha256_without_mark(path) for path in self.files],
        }

    def documents(self) -> Iterator[Document]:
        """The two parts of one file, or every file as a document of its own.

        Raises UserError: a file that is empty or not UTF-8, or a split that no file belongs to.
        """
        line_ends = LineEnds()
        if len(self.files) == 1:
            text = read_text(self.files[0])
            line_ends.count(text)
            self.note = line_ends.note()
            boundary = int(len(text) * (1 - self.val_fraction))
            yield Document("train", text[:boundary])
            yield Document("val", text[boundary:])
            return

        n_documents = {"train": 0, "val": 0}
        for path in self.files:
            text = read_text(path)
            line_ends.count(text)
            split = split_of(text, self.val_fraction)
            n_documents[split] += 1
            yield Document(split, text)

        self.note = line_ends.note()
        for split, n in n_documents.items():
            if n == 0:
                raise UserError(
                    f"each split must get a file, got none of {len(self.files)} for {split} "
                    f"at val_fraction={self.val_fraction}; change val_fraction or join the files "
                    "into one"
                )


class LineEnds:
    """Counts the line ends of texts, because a text that mixes them teaches a model both."""

    def __init__(self) -> None:
        self.n_windows = 0  # \r\n
        self.n_unix = 0  # \n alone

    def count(self, text: str) -> None:
        """Add the line ends of a text."""
        n_windows = text.count("\r\n")
        self.n_windows += n_windows
        self.n_unix += text.count("\n") - n_windows

    def note(self) -> str | None:
        """A line about texts that mix line ends; None where all are alike."""
        if not self.n_windows or not self.n_unix:
            return None
        return (
            f"the text has {self.n_windows:,} line ends of the kind \\r\\n and {self.n_unix:,} of the kind \\n; "
            "both are kept, and the model learns both"
        )


def topics(tree: ast.Module) -> list[str]:
    """Help texts of a parsed pydoc_data/topics.py, by topic name."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            texts = ast.literal_eval(statement.value)
            return [texts[name] for name in sorted(texts)]
    return []


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Docstrings of a parsed module, in the order of their lines, indentation removed."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        text = ast.get_docstring(node)
        if text:
            yield text


def split_of(text: str, val_fraction: float) -> str:
    """Split of a document: val if the first byte of SHA-256(text) is below 256 * val_fraction, else train.

    So a document keeps its split on every machine, whatever other documents come and go.
    """
    first_byte = hashlib.sha256(text.encode()).digest()[0]
    return "val" if first_byte < round(256 * val_fraction) else "train"


def sha256_of(path: Path) -> str:
    """Digest of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _sha256_without_mark(path: Path) -> str:
    """Digest of a file without the byte order mark that it may begin with, which is no part of its text."""
    return hashlib.sha256(path.read_bytes().removeprefix(codecs.BOM_UTF8)).hexdigest()


def find_files(path: str) -> list[Path]:
    """The file, the .txt and .md files below a folder, or what a glob matches; sorted; UserError if there are none."""
    if not path:
        raise UserError(
            "data.path must be a file, a folder or a glob, got an empty name; . is the current folder"
        )

    given = Path(path)
    if given.is_file():
        _check_is_text(given)
        return [given]

    if given.exists() and not given.is_dir():
        raise UserError(
            f"data.path must be a regular file or a folder, got {path}, which is neither"
        )
    if given.is_dir():
        files = [file for file in given.rglob("*") if file.suffix in TEXT_SUFFIXES]
        wanted = (
            f"the folder {path} must hold .txt or .md files, got none; "
            f"a glob takes files of other names, as in {given / '**' / '*.rst'}"
        )
    else:
        files = _matches(given)
        wanted = f"data.path must be a file, a folder or a glob that matches, got {path}, which does not exist"

    found = sorted(file for file in files if file.is_file())
    if not found:
        raise UserError(wanted)
    for file in found:
        _check_is_text(file)
    return found


def _check_is_text(file: Path) -> None:
    """Raise UserError for a file whose name says that it is no plain text."""
    remedy = NO_TEXT.get(file.suffix.lower())
    if remedy is not None:
        raise UserError(f"data.path must be plain text, got {file}; {remedy}")


def _matches(pattern: Path) -> list[Path]:
    """What a glob matches; UserError if it is none, as a**.txt."""
    try:
        return list(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))
    except ValueError as error:  # pathlib's, of a pattern that it cannot read
        raise UserError(
            f"data.path must be a file, a folder or a glob, got {pattern} ({error})"
        ) from None


def read_text(path: Path) -> str:
    """Text of a UTF-8 file without the byte order mark that it may begin with, line ends as they are.

    Raises UserError: the file is empty or not UTF-8.
    """
    data = path.read_bytes()
    zero = data.find(0)
    if zero >= 0 and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(
            f"{path} must be plain text in UTF-8, got a zero byte at offset {zero}; convert it first"
        )
    text = decode_text(data, str(path)).removeprefix(BYTE_ORDER_MARK)
    if not text:
        raise UserError(f"{path} must hold text, got an empty file")
    return text


def decode_text(data: bytes, name: str) -> str:
    """Decode UTF-8; UserError for the first byte that is not UTF-8, with its offset in what is called name."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        got = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise UserError(f"{name} must be UTF-8, got {got}; convert it first") from None


def check_fraction(val_fraction: float) -> float:
    """Return val_fraction, or raise UserError unless it is a number above 0 and below 1."""
    return number("val_fraction", val_fraction, above=0, below=1)
