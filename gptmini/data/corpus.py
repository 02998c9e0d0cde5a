"""The base class of corpora. A corpus yields its documents in a fixed order, and determines which are held out."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from gptmini.tokenizer import Document as Document

# Returns the SHA-256 digest of a file in hexadecimal. Unchanged files are not read again.
DigestOf = Callable[[Path], str]
# Fraction of the text that is held out for validation.
HeldOut = Annotated[float, Field(gt=0, lt=1)]


class Corpus(ABC):
    """A source of text for gptmini.data.prepare. A subclass must define name, identity and documents."""

    name: str  # prefix of the prepared folder's name
    # Fraction to hold out of the documents that do not have a split yet; None if each document has a split.
    val_fraction: float | None = None
    # "chat" if each document contains the messages of one chat in JSON. A chat is never cut. None for text.
    template: str | None = None
    loss_on: str = "all"  # or "answers": in chats, the loss counts only the assistant's answers
    on_error: str = "fail"  # or "skip": skip chats that the tokenizer's template rejects

    @abstractmethod
    def identity(self, digest_of: DigestOf) -> dict:
        """Return everything that determines the documents, in plain JSON types. It is part of the fingerprint."""

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yield every document once, in a fixed order. Each call reads them again."""

    def boundary(self) -> int | None:
        """Return the number of UTF-8 bytes before the held-out end; None if documents are split by their hashes."""
        return None

    def share_read(self) -> float | None:
        """Return the fraction of the text that has been read, from 0 to 1; None if it is unknown."""
        return None

    def share_held_out(self) -> float:
        """Return the approximate fraction of the text that is held out."""
        return self.val_fraction or 0.0

    def notes(self) -> list[str]:
        """Return the lines to print once the text is prepared."""
        return []

    def skipped(self) -> str:
        """Return one line for each record that the last reading skipped."""
        return ""


def split_of(text: str, val_fraction: float) -> str:
    """Return the split of a document: val if the first byte of its SHA-256 digest is below 256 val_fraction.

    Only the UTF-8 bytes of the document determine the digest, so a document keeps its split when others change.
    """
    first_byte = hashlib.sha256(text.encode(errors="replace")).digest()[0]
    return "val" if first_byte < round(256 * val_fraction) else "train"
