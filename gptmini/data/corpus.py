"""Where text comes from: each corpus yields its documents in a fixed order, and says which of them are held out."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from gptmini.tokenizer import Document as Document

# Gives the SHA-256 digest of a file, in hexadecimal; a file that has not changed is not read again.
DigestOf = Callable[[Path], str]
# The share of a text that is held out for validation.
HeldOut = Annotated[float, Field(gt=0, lt=1)]


class Corpus(ABC):
    """A source of text, as prepare takes it. Only name, identity and documents must be given."""

    name: str  # begins the name of the prepared folder
    # The share that is held out of the documents that come without a split; None where each has one.
    val_fraction: float | None = None
    # chat where each document is a chat, its messages in JSON, which stays whole; None for text.
    template: str | None = None
    loss_on: str = "all"  # or answers, for the loss on the assistant's answers in chats alone
    on_error: str = "fail"  # or skip, to leave out chats that the tokenizer's template refuses

    @abstractmethod
    def identity(self, digest_of: DigestOf) -> dict:
        """What the documents follow from, in plain JSON types: it changes when any document would."""

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Read every document once, in a fixed order; the next call reads them again."""

    def boundary(self) -> int | None:
        """UTF-8 bytes of text before what is held out, where its place decides; None where hashes of documents do."""
        return None

    def share_read(self) -> float | None:
        """Share of the text that the present reading has come to, from 0 to 1; None if that is not known."""
        return None

    def share_held_out(self) -> float:
        """Share of the text that is held out, about."""
        return self.val_fraction or 0.0

    def notes(self) -> list[str]:
        """Lines that a user should read once the text is prepared."""
        return []

    def skipped(self) -> str:
        """A line for each record that the last reading left out; empty where none was."""
        return ""


def split_of(text: str, val_fraction: float) -> str:
    """Split of a document by the first byte of the SHA-256 digest of its UTF-8: below 256 val_fraction it is val.

    So a document keeps its split on every machine, whatever other documents come and go.
    """
    first_byte = hashlib.sha256(text.encode(errors="replace")).digest()[0]
    return "val" if first_byte < round(256 * val_fraction) else "train"
