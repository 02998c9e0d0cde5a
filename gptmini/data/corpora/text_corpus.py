"""The corpus of the user's own files."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import validate_call

from gptmini.console.escapes import unescaped
from gptmini.console.names import names_of
from gptmini.data.corpus import Corpus, DigestOf, HeldOut
from gptmini.data.reading.chat_formats import CHAT_FIELD, CHAT_VERSION
from gptmini.data.reading.downloads import local_paths
from gptmini.data.reading.opening import Encoding, format_of, open_text
from gptmini.data.reading.paths import Paths, find_files, hold_out, note_about, short_name
from gptmini.data.reading.readers import FieldName, LossOn, OnError, Reader, Separator, Template
from gptmini.settings import STRICT, FileName
from gptmini.system.errors import UserError
from gptmini.tokenizer import Document

UNNAMED = "text"  # the name of a text in fingerprints, unless the caller gives a different name


class TextCorpus(Corpus):
    """The user's own files, in any format that gptmini.data.reading.readers supports."""

    path_key = "data.path"  # name of the argument path in error messages

    @validate_call(config=STRICT)
    def __init__(
        self,
        path: Paths,
        val_fraction: HeldOut,
        name: FileName = UNNAMED,
        *,
        val_path: Paths | None = None,
        field: FieldName = "text",
        separator: Separator | None = None,
        encoding: Encoding = "utf-8",
        on_error: OnError = "fail",
        template: Template | None = None,
        loss_on: LossOn = "all",
        quote: bool | None = None,
        folder: str = "data/downloads",
        may_download: bool = True,
    ) -> None:
        """Find the files, and download texts at addresses. configs/data/text.yaml describes the arguments.

        may_download is False if the addresses come from a stored run and not from the command line.

        The name is part of the fingerprint. The prepared folder's name starts with it, or with the name of the files if
        the text has the default name. A file that is in path and in val_path is only held out.

        Raises pydantic.ValidationError for an invalid value. Raises UserError if a path has no text, or if loss_on is
        "answers" but template is None.
        """
        if loss_on == "answers" and template is None:
            raise UserError(
                "data.loss_on=answers requires chats with marked answers; set data.template=chat"
            )
        path = local_paths(self.path_key, path, folder, may_download=may_download)
        self.template = template
        self.loss_on = loss_on
        self.on_error = on_error
        self.name = name
        self.folder_name = "" if name != UNNAMED else short_name(path)
        self.val_fraction = val_fraction if val_path is None else None
        self._reader_settings: dict[str, Any] = {
            "field": field,
            "separator": None if separator is None else unescaped(separator),
            "encoding": encoding,
            "on_error": on_error,
        }
        if template is not None:
            self._reader_settings["template"] = template
            self._reader_settings["field"] = CHAT_FIELD if field == "text" else field

        search = find_files(self.path_key, path)
        self.files = search.files
        self.val_files: list[Path] = []
        self._notes_on_files = search.notes()
        if val_path is not None:
            val_path = local_paths("data.val_path", val_path, folder, may_download=may_download)
            held_out = find_files("data.val_path", val_path)
            self.val_files = held_out.files
            self.files, notes = hold_out(search.files, held_out.files)
            self._notes_on_files += notes + held_out.notes()
        # Bytes of all files on disk.
        self.size = sum(file.stat().st_size for file in (*self.files, *self.val_files))

        # The reader of the current or last reading. Each reading has a new reader, which counts from 0.
        self._reader = Reader(quote=quote, **self._reader_settings)

    def identity(self, digest_of: DigestOf) -> dict:
        """Return the digest and the format of each file in order, the split rule, and the settings of the reader."""
        chats = {} if self.template is None else {"loss_on": self.loss_on, "fields": CHAT_VERSION}
        return chats | {
            "corpus": self.name,
            "files": [self._identity_of(file, digest_of) for file in self.files],
            "val_files": [self._identity_of(file, digest_of) for file in self.val_files],
            "val_fraction": self.val_fraction,
            **self._reader_settings,
        }

    def documents(self) -> Iterator[Document]:
        """Yield every document in parts of bounded size. With val_path, each document has a split.

        Raises UserError if a file cannot be read, or if no file contains text.
        """
        self._reader = replace(self._reader)
        splits: dict[str | None, list[Path]] = {None: self.files}
        if self.val_files:
            splits = {"train": self.files, "val": self.val_files}
        for split, files in splits.items():
            for file in files:
                for part in self._reader.read(file):
                    yield part._replace(split=split)
            if set(files) <= set(self._reader.empty):
                raise UserError(f"{names_of(files)} must contain text, got no text")

    def boundary(self) -> int | None:
        """Return the number of UTF-8 bytes of training text if the corpus is one plain text file with one document.

        Otherwise return None. A file that is compressed or not in UTF-8 is read to count its bytes.
        """
        file = self.files[0]
        kind, packing = format_of(file)
        is_one_document = len(self.files) == 1 and kind == "text" and self._reader.separator is None
        if self.val_fraction is None or not is_one_document:
            return None

        with open_text(file, self._reader.encoding) as text:
            is_plain_utf8 = text.is_utf8 and not packing
            n_bytes = file.stat().st_size - text.offset
        if not is_plain_utf8:
            n_bytes = sum(len(part.text.encode()) for part in replace(self._reader).read(file))
        return int(n_bytes * (1 - self.val_fraction))

    def share_read(self) -> float:
        """Return the fraction of the bytes of all files that documents() has read, from 0 to 1."""
        n_read = self._reader.n_bytes_done + self._reader.position
        return min(1.0, n_read / max(self.size, 1))

    def share_held_out(self) -> float:
        """Return val_fraction. With val_path, return the fraction of the bytes of all files that is held out."""
        if self.val_fraction is not None:
            return self.val_fraction
        return sum(file.stat().st_size for file in self.val_files) / max(self.size, 1)

    def notes(self) -> list[str]:
        """Return the notes on files, records and the separator. The notes are complete after reading."""
        reader = self._reader
        notes = [*self._notes_on_files, *note_about(reader.empty, "skipped (contains no text)")]
        if reader.separator is not None and not reader.n_separators:
            notes.append(
                f"data.separator={reader.separator!r} never occurs; each plain text file is one document"
            )
        if reader.odd_row:
            notes.append(
                f"{reader.odd_row}: a value contains lines that look like table rows; check its quotation marks"
            )
        unused = reader.unused - ({"weight"} if self.loss_on == "answers" else set())
        if unused:
            notes.append(f"chats have fields that are not used: {', '.join(sorted(unused))}")
        return notes + reader.skipped.notes("unreadable record", "skipped")

    def skipped(self) -> str:
        """Return one line for each listed record that the last reading skipped, and the number of the others."""
        return self._reader.skipped.listed()

    def _identity_of(self, file: Path, digest_of: DigestOf) -> list[str]:
        kind, packing = format_of(file)
        is_quoted = self._reader.is_quoted(kind)
        identity = [digest_of(file), kind, packing]
        # The default of CSV is not part of the identity, because earlier versions did not store it.
        if kind == "tsv" or (kind == "csv" and not is_quoted):
            identity.append("quoted" if is_quoted else "unquoted")
        return identity
