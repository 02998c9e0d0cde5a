"""Documents from files of the user's own, and their splits."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import validate_call

from gptmini.data.corpus import DigestOf, Document, HeldOut
from gptmini.data.escapes import unescaped
from gptmini.data.preparation.digests import begins_with_mark, sha256_of
from gptmini.data.sources import (
    Encoding,
    FieldName,
    OnError,
    Paths,
    Reading,
    Separator,
    find_files,
    note_on_held_out,
    notes_on_empty,
    read_pieces,
    without_held_out,
)
from gptmini.data.sources.formats import format_of
from gptmini.settings import STRICT, FileName
from gptmini.user_error import UserError

# Records that are listed one by one where they are left out; of more, the number alone is told.
MOST_LISTED = 10_000


class TextCorpus:
    """Files of the user's own, of any format that gptmini.data.sources reads.

    Which documents are held out is decided when they are prepared, unless val_path gives the held-out text.
    """

    @validate_call(config=STRICT)
    def __init__(
        self,
        path: Paths,
        val_fraction: HeldOut,
        name: FileName = "text",
        *,
        val_path: Paths | None = None,
        field: FieldName = "text",
        separator: Separator | None = None,
        encoding: Encoding = "utf-8",
        on_error: OnError = "fail",
    ) -> None:
        """Find the files.

        Args:
            path: a file, a folder, a glob, or a list of these.
            val_fraction: share of the text that is held out; unused with val_path.
            name: begins the name of the prepared folder.
            val_path: files of held-out text, named as path is; those that path names too are not trained on. None to
                hold out a share of path.
            field: as for Reading, like the arguments after it.
            separator: text between the documents of a file; \\n stands for a line break, as in Python.
            encoding: of files of text.
            on_error: fail, or skip for records that cannot be read.

        Raises pydantic.ValidationError: a value that does not fit. Raises UserError: a path with nothing to read.
        """
        self.val_fraction = val_fraction
        self.name = name

        if separator is not None:
            separator = unescaped(separator)
        self.reading = Reading(
            field=field, separator=separator, encoding=encoding, on_error=on_error
        )

        found = find_files("data.path", path)
        self.files = found.files
        self.val_files: list[Path] = []
        self._found_notes = found.notes()
        if val_path is not None:
            held_out = find_files("data.val_path", val_path)
            self.files = without_held_out(found.files, held_out.files)
            self.val_files = held_out.files
            self._found_notes += note_on_held_out(len(found.files) - len(self.files))
            self._found_notes += held_out.notes()
        self.digest_of: DigestOf = sha256_of
        # For share_read: bytes of the files as they lie on disk.
        self._n_all = sum(file.stat().st_size for file in (*self.files, *self.val_files))
        self._n_before = 0  # of the files that are read to their end
        self._n_in_file = 0  # of the file that is being read

        self.skipped = Skipped()  # of the last reading
        self._empty: list[Path] = []  # files in which the last reading found no text
        # What a user should know of the text; complete once documents has been read to its end.
        self.notes = list(self._found_notes)

    def identity(self) -> dict:
        """Corpus, split rule, each file's digest, in order, and how the files are read where that matters."""
        identity: dict[str, object] = {
            "corpus": self.name,
            "files": [self.digest_of(path) for path in self.files],
        }
        if self.val_files:
            identity["val_files"] = [self.digest_of(path) for path in self.val_files]
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
            # A byte order mark, which the digests leave out, counts for more than the encoding.
            files = (*self.files, *self.val_files)
            identity["marked"] = [begins_with_mark(path) for path in files]
        if self.reading.on_error != "fail":
            identity["on_error"] = self.reading.on_error
        return identity

    def documents(self) -> Iterator[Document]:
        """Every document, in parts of bounded size; with val_path each has its split.

        Raises UserError: a file that holds no text or cannot be read.
        """
        line_ends = LineEnds()
        separators = Separators(self.reading.separator)
        skipped = self.skipped = Skipped()
        self._empty = []
        self._n_before = 0

        try:
            if self.val_files:
                yield from self._documents("train", self.files, line_ends, separators, skipped)
                yield from self._documents("val", self.val_files, line_ends, separators, skipped)
            else:
                yield from self._documents(None, self.files, line_ends, separators, skipped)
        finally:
            self.notes = [
                *self._found_notes,
                *notes_on_empty(self._empty),
                *separators.notes(),
                *line_ends.notes(),
                *skipped.notes(),
            ]

    def share_read(self) -> float:
        """Share of the bytes of all files that documents() has read, from 0 to 1."""
        return min(1.0, (self._n_before + self._n_in_file) / max(self._n_all, 1))

    def _documents(
        self,
        split: str | None,
        files: list[Path],
        line_ends: "LineEnds",
        separators: "Separators",
        skipped: "Skipped",
    ) -> Iterator[Document]:
        """The documents of the files of a split, in their order."""
        has_text = False
        for file in files:
            self._n_in_file = 0
            is_empty = True

            for piece in read_pieces(
                file,
                self.reading,
                on_skip=skipped.add,
                on_position=self._at,
                on_separator=separators.count,
            ):
                is_empty = False
                line_ends.count(piece.text)
                yield Document(split, piece.text, piece.ends)

            if is_empty and len(files) == 1:
                raise UserError(f"{file} must hold text, got none")
            if is_empty:
                self._empty.append(file)
            has_text = has_text or not is_empty

            self._n_before += file.stat().st_size
            self._n_in_file = 0

        if not has_text:
            key = "data.val_path" if split == "val" else "data.path"
            raise UserError(f"{key} must hold text, got {len(files)} files without any")

    def _at(self, position: int) -> None:
        """Take down how many bytes of the present file have been read."""
        self._n_in_file = position


class Skipped:
    """Records that were left out because they cannot be read."""

    def __init__(self) -> None:
        self.n = 0
        # Where each of the first MOST_LISTED lies, and what is wrong with it.
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        """Count a record."""
        self.n += 1
        if self.n <= MOST_LISTED:
            self.lines.append(line)

    def notes(self) -> list[str]:
        """A line about the records; none where all could be read."""
        if not self.n:
            return []
        noun = "record was" if self.n == 1 else "records were"
        return [f"{self.n:,} {noun} left out that cannot be read; the first: {self.lines[0]}"]

    def listed(self) -> str:
        """A text with a line for each record; empty where all could be read."""
        more = self.n - len(self.lines)
        rest = [f"and {more:,} more"] if more else []
        return "".join(f"{line}\n" for line in [*self.lines, *rest])


class Separators:
    """Counts the places where the separator of documents stands, because one that is misspelt stands nowhere."""

    def __init__(self, separator: str | None) -> None:
        """Take the separator that was asked for; None for none."""
        self._separator = separator
        self._n = 0

    def count(self) -> None:
        """Count a place."""
        self._n += 1

    def notes(self) -> list[str]:
        """A line about a separator that stands nowhere."""
        if self._separator is None or self._n:
            return []
        return [
            f"data.separator={self._separator!r} stands in no file of plain text, so that each is one document"
        ]


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
