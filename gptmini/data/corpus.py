"""The base class of corpora. A corpus yields its documents in a fixed order, and decides which documents
are held out.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from gptmini.tokenizer import Document as Document

if TYPE_CHECKING:
    from gptmini.data.prepared.preparation import Preparation

# The type of a function that returns the SHA-256 digest of a file in hexadecimal. A file that did not change is not
# read a second time.
DigestOf = Callable[[Path], str]
# Fraction of the text that is held out for validation.
HeldOut = Annotated[float, Field(gt=0, lt=1)]


class Corpus(ABC):
    """A source of text for gptmini.data.prepare. A subclass must define name, identity and documents."""

    name: str  # part of the fingerprint
    # Fraction of the documents to hold out. Documents that already have a split are not counted. None if each document
    # has a split.
    val_fraction: float | None = None
    # "chat" if each document contains the messages of one chat in JSON. A chat is never cut. None if each
    # document contains text.
    template: str | None = None
    # "all", or "answers" for chats. With "answers", the loss counts only the answers of the assistant.
    loss_on: str = "all"
    # "fail", or "skip" to skip chats that the template of the tokenizer rejects.
    on_error: str = "fail"
    # False if parts of the corpus may be tokens. These tokens then determine the tokenizer.
    is_text: bool = True

    @property
    def folder_name(self) -> str:
        """The start of the prepared folder's name. It is not part of the fingerprint."""
        return self.name

    @abstractmethod
    def identity(self, digest_of: DigestOf) -> dict:
        """Return everything that determines the documents, in plain JSON types. The result is part of the
        fingerprint.
        """

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yield every document once, in a fixed order. Each call reads all documents from the start."""

    def prepare_tokens(self, preparation: "Preparation") -> bool:
        """Write the prepared folder unless it is complete. Return whether this call wrote it.

        gptmini.data.prepare calls this method. By default, the documents are encoded.
        """
        return preparation.encode()

    def boundary(self) -> int | None:
        """Return the number of UTF-8 bytes before the held-out end, or None if hashes determine the splits."""
        return None

    def share_read(self) -> float | None:
        """Return the fraction of the text that has been read, from 0 to 1. Return None if the fraction is unknown."""
        return None

    def share_held_out(self) -> float:
        """Return the approximate fraction of the text that is held out."""
        return self.val_fraction or 0.0

    def notes(self) -> list[str]:
        """Return the lines to print after the text is prepared."""
        return []

    def skipped(self) -> str:
        """Return one line for each record that the last reading skipped."""
        return ""


def split_of(text: str, val_fraction: float) -> str:
    """Return the split of a document.

    The split is "val" if the first byte of the SHA-256 digest of the document is below 256 val_fraction. Otherwise the
    split is "train". Only the UTF-8 bytes of the document determine the digest. Therefore a document keeps its split
    when other documents change.
    """
    first_byte = hashlib.sha256(text.encode(errors="replace")).digest()[0]
    return "val" if first_byte < round(256 * val_fraction) else "train"
