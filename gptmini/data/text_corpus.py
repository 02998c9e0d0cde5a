"""Documents from files of the user's own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import validate_call

from gptmini.data.corpus import Corpus, DigestOf, Document, HeldOut
from gptmini.data.escapes import unescaped
from gptmini.data.opening import Encoding, format_of, opened
from gptmini.data.paths import Paths, find_files, names_of, note_on, without_held_out
from gptmini.data.pieces import Piece
from gptmini.data.quoting import quoting_of
from gptmini.data.readers import FieldName, LossOn, OnError, Reader, Separator, Template
from gptmini.settings import STRICT, FileName
from gptmini.user_error import UserError


class TextCorpus(Corpus):
    """Files of the user's own, of any format that gptmini.data.readers reads."""

    path_key = "data.path"  # what an error message calls the argument path

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
        template: Template | None = None,
        loss_on: LossOn = "all",
    ) -> None:
        """Find the files.

        Args:
            path: a file, a folder, a glob, or a list of these.
            val_fraction: share of the text that is held out; unused with val_path.
            name: begins the name of the prepared folder.
            val_path: files of held-out text, named as path is; those that path names too are not trained on. None to
                hold out a share of path.
            field: as for Reader, like the arguments after it.
            separator: text between the documents of a file; \\n stands for a line break, as in Python.
            on_error: fail, or skip for records that cannot be read, and chats that the template refuses.
            template: chat for records with messages, in the field of this name unless `field` is another than text;
                the tokenizer's template makes text of them.
            loss_on: all tokens, or answers, the assistant's in chats, alone.

        Raises pydantic.ValidationError: a value that does not fit. Raises UserError: a path with nothing to read, or
        answers without chats.
        """
        if loss_on == "answers" and template is None:
            raise UserError(
                "data.loss_on=answers needs data.template=chat, which says where answers are"
            )
        self.template = template
        self.loss_on = loss_on
        self.on_error = on_error
        self.name = name
        self.val_fraction = val_fraction if val_path is None else None
        self._how: dict[str, Any] = {
            "field": field,
            "separator": None if separator is None else unescaped(separator),
            "encoding": encoding,
            "on_error": on_error,
        }
        if template is not None:
            self._how["template"] = template
            self._how["field"] = "messages" if field == "text" else field

        found = find_files(self.path_key, path)
        self.files = found.files
        self.val_files: list[Path] = []
        self._found_notes = found.notes()
        if val_path is not None:
            held_out = find_files("data.val_path", val_path)
            self.val_files = held_out.files
            self.files = without_held_out(found.files, held_out.files)
            kept = set(self.files)
            in_both = [file for file in found.files if file not in kept]
            self._found_notes += note_on(in_both, "held out, being named by data.val_path too")
            self._found_notes += held_out.notes()
        # Bytes of all files, as they lie on disk.
        self.size = sum(file.stat().st_size for file in (*self.files, *self.val_files))

        # Of the present or last reading.
        self._reader = Reader(**self._how)
        self._n_before = 0  # bytes of the files that are read to their end, as they lie on disk
        self._empty: list[Path] = []  # files without text

    def identity(self, digest_of: DigestOf) -> dict:
        """The digest and the format of each file, in order, which of them are held out, and how they are read."""
        chats = {} if self.template is None else {"loss_on": self.loss_on}
        return chats | {
            "corpus": self.name,
            "files": [self._identity_of(file, digest_of) for file in self.files],
            "val_files": [self._identity_of(file, digest_of) for file in self.val_files],
            "val_fraction": self.val_fraction,
            **self._how,
        }

    def documents(self) -> Iterator[Document]:
        """Every document, in parts of bounded size; with val_path each has its split.

        Raises UserError: a file that cannot be read, or no text in any.
        """
        self._reader = Reader(**self._how)
        self._n_before = 0
        self._empty = []
        if self.val_files:
            yield from self._documents("train", self.files)
            yield from self._documents("val", self.val_files)
        else:
            yield from self._documents(None, self.files)

    def boundary(self) -> int | None:
        """UTF-8 bytes of a single document, a file of text, but for the last share; None for any other text.

        A file that is packed, or in another encoding than UTF-8, is read to count them.
        """
        file = self.files[0]
        kind, packing = format_of(file)
        is_one_document = len(self.files) == 1 and kind == "text" and self._reader.separator is None
        if self.val_fraction is None or not is_one_document:
            return None

        with opened(file, self._reader.encoding) as text:
            is_text_on_disk = text.is_utf8 and not packing
            n_bytes = file.stat().st_size - text.offset
        if not is_text_on_disk:
            pieces = Reader(**self._how).pieces(file)
            n_bytes = sum(len(piece.text.encode()) for piece in pieces)
        return int(n_bytes * (1 - self.val_fraction))

    def share_read(self) -> float:
        """Share of the bytes of all files that documents() has read, from 0 to 1."""
        return min(1.0, (self._n_before + self._reader.position) / max(self.size, 1))

    def share_held_out(self) -> float:
        """Share of the text that is held out: with val_path, of the bytes of all files."""
        if self.val_fraction is not None:
            return self.val_fraction
        return sum(file.stat().st_size for file in self.val_files) / max(self.size, 1)

    def notes(self) -> list[str]:
        """Lines about what was left out, and about a separator that stands nowhere; complete once the text is read."""
        reader = self._reader
        notes = [*self._found_notes, *note_on(self._empty, "found to hold no text")]
        if reader.separator is not None and not reader.n_separators:
            notes.append(
                f"data.separator={reader.separator!r} stands in no file of plain text, so that each is one document"
            )
        notes += note_on(reader.quoted, "read as quoted: quotation marks around values are removed")
        notes += note_on(reader.marked, "read as not quoted: quotation marks are part of the text")
        if reader.merged:
            n_merged = len(reader.merged)
            subject = "1 value holds" if n_merged == 1 else f"{n_merged:,} values hold"
            notes.append(
                f"{subject} lines that look like rows of the table; the first: {reader.merged[0]} check the "
                "quotation mark there"
            )
        if reader.n_skipped:
            noun = "record was" if reader.n_skipped == 1 else "records were"
            notes.append(
                f"{reader.n_skipped:,} {noun} left out that cannot be read; the first: {reader.skipped[0]}"
            )
        return notes

    def skipped(self) -> str:
        """A line for each of the first records that the last reading left out, and how many more there were."""
        lines = [*self._reader.skipped]
        more = self._reader.n_skipped - len(lines)
        if more:
            lines.append(f"and {more:,} more")
        return "".join(f"{line}\n" for line in lines)

    def _identity_of(self, file: Path, digest_of: DigestOf) -> list[str]:
        """Digest, kind and packing of a file, and whether quotation marks are text, where that was decided."""
        kind, packing = format_of(file)
        is_unquoted = kind == "tsv" and quoting_of(file, self._how["encoding"]) == "text"
        return [digest_of(file), kind, packing, *(["unquoted"] if is_unquoted else [])]

    def _documents(self, split: str | None, files: list[Path]) -> Iterator[Document]:
        """The documents of the files of a split, in their order."""
        n_empty = 0
        for file in files:
            piece: Piece | None = None
            for piece in self._reader.pieces(file):
                yield Document(split, piece.text, piece.ends, piece.where)
            if piece is None:
                self._empty.append(file)
                n_empty += 1

            self._n_before += file.stat().st_size
            self._reader.position = 0

        if n_empty == len(files):
            raise UserError(f"{names_of(files)} must hold text, got none")
