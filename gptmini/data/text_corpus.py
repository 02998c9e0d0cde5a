"""Documents from files of the user's own, and their splits."""

import codecs
import hashlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from gptmini.checks import UserError, unescaped
from gptmini.data.corpus import Document, check_fraction, split_of
from gptmini.data.sources import FoundFiles, Reading, find_files, read_pieces
from gptmini.data.sources.formats import format_of


class TextCorpus:
    """Files of the user's own, of any format that gptmini.data.sources reads.

    A single document splits by position, several by a hash of each document's text, unless val_path gives the held-out
    text.
    """

    def __init__(
        self,
        path: str | Path | Sequence[str],
        val_fraction: float,
        name: str = "text",
        *,
        val_path: str | Path | Sequence[str] | None = None,
        field: str = "text",
        separator: str | None = None,
        encoding: str = "utf-8",
        on_error: str = "fail",
    ) -> None:
        """Find the files.

        Args:
            path: a file, a folder, a glob, or a list of these.
            val_fraction: share of the documents, or of the one document, that is held out; unused with val_path.
            name: begins the name of the prepared folder.
            val_path: files of held-out text, named as path is; None to hold out a share of path.
            field: as for Reading, like the arguments after it.
            separator: text between the documents of a file; \\n stands for a line break, as in Python.
            encoding: of files of text.
            on_error: fail, or skip for records that cannot be read.

        Raises UserError: a value that does not fit, or a path with nothing to read.
        """
        self.val_fraction = check_fraction(val_fraction)
        self.name = name

        if isinstance(separator, str):
            separator = unescaped(separator)
        self.reading = Reading(
            field=field, separator=separator, encoding=encoding, on_error=on_error
        )

        found = find_files("data.path", path)
        held_out = FoundFiles([], [])
        if val_path is not None:
            held_out = find_files("data.val_path", val_path)
        self.files = found.files
        self.val_files = held_out.files

        self._found_notes = [note for note in (found.note(), held_out.note()) if note is not None]
        # What a user should know of the text; complete once documents has been read to its end.
        self.notes = list(self._found_notes)

    def identity(self) -> dict:
        """Corpus, split rule, each file's digest, in order, and how the files are read where that matters."""
        identity: dict[str, object] = {
            "corpus": self.name,
            "files": [_sha256_without_mark(path) for path in self.files],
        }
        if self.val_files:
            identity["val_files"] = [_sha256_without_mark(path) for path in self.val_files]
        else:
            identity["val_fraction"] = self.val_fraction

        formats = [format_of(path) for path in (*self.files, *self.val_files)]
        if any(format.is_structured for format in formats):
            identity["formats"] = [f"{format.kind}{format.packing}" for format in formats]
        if any(format.kind != "text" for format in formats):
            identity["field"] = self.reading.field
        if self.reading.separator is not None:
            identity["separator"] = self.reading.separator
        if self.reading.encoding != "utf-8":
            identity["encoding"] = self.reading.encoding
        if self.reading.on_error != "fail":
            identity["on_error"] = self.reading.on_error
        return identity

    def documents(self) -> Iterator[Document]:
        """The two parts of a single document, or every document with its split.

        Raises UserError: a file that holds no text or cannot be read, or a split without a document.
        """
        line_ends = LineEnds()
        skipped: list[str] = []
        try:
            if self.val_files:
                for split, files in (("train", self.files), ("val", self.val_files)):
                    for text in self._texts(files, line_ends, skipped):
                        yield Document(split, text)
            else:
                yield from self._divided(self._texts(self.files, line_ends, skipped))
        finally:
            self.notes = [*self._found_notes, *line_ends.notes(), *_notes_on_skipped(skipped)]

    def _divided(self, texts: Iterator[str]) -> Iterator[Document]:
        """Documents with their splits; a single one is divided at a position."""
        first = next(texts, None)
        second = next(texts, None)
        if first is None:
            raise UserError(f"data.path must hold text, got {len(self.files)} files without any")
        if second is None:
            boundary = int(len(first) * (1 - self.val_fraction))
            yield Document("train", first[:boundary])
            yield Document("val", first[boundary:])
            return

        n_documents = {"train": 0, "val": 0}
        for text in chain((first, second), texts):
            split = split_of(text, self.val_fraction)
            n_documents[split] += 1
            yield Document(split, text)
        for split, n in n_documents.items():
            if n == 0:
                raise UserError(
                    f"each split must get a document, got none of {sum(n_documents.values())} for {split} "
                    f"at val_fraction={self.val_fraction}; change data.val_fraction, give data.val_path, "
                    "or join the files into one"
                )

    def _texts(self, files: list[Path], line_ends: "LineEnds", skipped: list[str]) -> Iterator[str]:
        """The documents of files, in their order."""
        for file in files:
            parts = []
            is_empty = True
            for piece in read_pieces(file, self.reading, skipped.append):
                is_empty = False
                line_ends.count(piece.text)
                parts.append(piece.text)
                if piece.ends:
                    yield "".join(parts)
                    parts = []
            if is_empty and format_of(file).kind == "text":
                raise UserError(f"{file} must hold text, got an empty file")


def _notes_on_skipped(skipped: list[str]) -> list[str]:
    """A line about records that were left out because they cannot be read; none where all could be read."""
    if not skipped:
        return []
    noun = "record was" if len(skipped) == 1 else "records were"
    return [f"{len(skipped):,} {noun} left out that cannot be read; the first: {skipped[0]}"]


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

    def notes(self) -> list[str]:
        """A line about texts that mix line ends; none where all are alike."""
        if not self.n_windows or not self.n_unix:
            return []
        return [
            f"the text has {self.n_windows:,} line ends of the kind \\r\\n and {self.n_unix:,} of the kind \\n; "
            "both are kept, and the model learns both"
        ]


def _sha256_without_mark(path: Path) -> str:
    """Digest of a file without the byte order mark that it may begin with, which is no part of its text."""
    with path.open("rb") as file:
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()
