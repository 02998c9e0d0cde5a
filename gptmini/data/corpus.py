"""Where text comes from: each corpus yields its documents in a fixed order, each with the split that it belongs to."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple, Protocol

from pydantic import Field

from gptmini.user_error import UserError

# Gives the SHA-256 digest of a file, in hexadecimal.
DigestOf = Callable[[Path], str]
# The share of a text that is held out for validation.
HeldOut = Annotated[float, Field(gt=0, lt=1)]


class Document(NamedTuple):
    """One text of a corpus, or a part of it: a long document comes in several, one after the other."""

    split: str | None  # train, or val for text that is held out; None where prepare decides
    text: str
    ends: bool = True  # whether the document ends with this part


class Corpus(Protocol):
    """A source of text, as prepare takes it.

    A corpus may also have these attributes. `val_fraction` is the share that is held out of documents without a split.
    `notes` are lines that a user should read once the text is prepared, and `skipped.listed()` gives the text of a list
    of the records that were left out. `digest_of`, of the type DigestOf, is set by
    prepare before it calls identity(), so that files are read again only if they have changed. `share_read()` gives the
    share of the text, from 0 to 1, that documents() has read so far.
    """

    name: str  # begins the name of the prepared folder

    def identity(self) -> dict:
        """What the documents follow from, in plain JSON types, with the name of the corpus under the key corpus.

        It changes when any document would.
        """
        ...

    def documents(self) -> Iterator[Document]:
        """Read every document once, in a fixed order; the next call reads them again."""
        ...


def check_document(document: object) -> None:
    """Raise UserError for what a corpus of the user's own must not yield."""
    if not isinstance(document, Document):
        raise UserError(
            f"the documents of a corpus must be gptmini.data.Document, got {document!r:.80}"
        )
    if document.split not in (None, "train", "val"):
        raise UserError(
            f"the split of a document must be train, val or None, got {document.split!r}"
        )
    if type(document.text) is not str or type(document.ends) is not bool:
        raise UserError(
            "a document must have a str for its text and a bool for whether it ends, got "
            f"{type(document.text).__name__} and {type(document.ends).__name__}"
        )
