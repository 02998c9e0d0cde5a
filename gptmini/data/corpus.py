"""The interface of a text: corpora/ implements it, and prepared/ reads it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from gptmini.tokenizer import Document

# The type of a function that returns the SHA-256 digest of a file in hexadecimal. A file that did not change is not
# read a second time.
DigestOf = Callable[[Path], str]
# After this many bytes, stop counting the bytes of a text. Then estimate them from the fraction that was read.
ENOUGH = 50_000_000
# Fraction of the text that is held out for validation.
HeldOut = Annotated[float, Field(gt=0, lt=1)]


class Corpus(ABC):
    """A text as documents in a fixed order. A subclass must define name, identity and documents."""

    name: str  # part of the fingerprint
    folder_name: str = ""  # the prepared folder's name starts with it, or with the name of the corpus if it is empty
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

    @abstractmethod
    def identity(self, digest_of: DigestOf) -> dict:
        """Return everything that determines the documents, as plain JSON types. It is part of the fingerprint."""

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yield every document once, in a fixed order. Each call reads all documents from the start."""

    def boundary(self) -> int | None:
        """Return the number of UTF-8 bytes before the held-out end, or None if hashes determine the splits."""
        return None

    def share_read(self) -> float | None:
        """Return the fraction of the text that has been read, from 0 to 1. Return None if the fraction is unknown."""
        return None

    def share_held_out(self) -> float:
        """Return the approximate fraction of the text that is held out."""
        return self.val_fraction or 0.0

    def bytes_to_train_on(self) -> int:
        """Return the number of UTF-8 bytes to train on. For a large text, estimate this number."""
        n_bytes = 0  # bytes of all documents that were read
        n_held_out = 0  # bytes of the documents that the corpus itself holds out
        for document in self.documents():
            n_of_document = len(document.text.encode())
            n_bytes += n_of_document
            n_held_out += n_of_document if document.split == "val" else 0
            if n_bytes >= ENOUGH:
                n_all = n_bytes / (self.share_read() or 1)
                return round(n_all * (1 - self.share_held_out()))
        return round((n_bytes - n_held_out) * (1 - (self.val_fraction or 0)))

    def notes(self) -> list[str]:
        """Return the lines to print after the text is prepared."""
        return []

    def skipped(self) -> str:
        """Return one line for each record that the last reading skipped."""
        return ""
