"""What the program needs of a tokenizer, and what the builder of a tokenizer needs of a corpus."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

END_OF_TEXT = "<|endoftext|>"  # the name that GPT-2 gives to the id between documents
REPLACEMENT = "\ufffd"  # what an id outside the vocabulary, or half a character, decodes to


class Document(NamedTuple):
    """One text of a corpus, or a part of it: a long document comes in several, one after the other."""

    split: str | None  # train, or val for text that is held out; None where val_fraction decides
    text: str
    ends: bool = True  # whether the document ends with this part
    where: str = ""  # how a message about it begins: the file, and the line or row; empty where that is not known


class Tokenizer(Protocol):
    """Turns text into ids and back."""

    kind: str  # which class from_dict rebuilds
    n_vocab: int  # ids, end-of-text included
    end_of_text: int | None  # id that separates documents; None for a tokenizer without one
    before: Sequence[int]  # ids that a model expects before a text
    # Id of bos_token, which other programs put before a text that they score; None if `before` or end_of_text says it.
    beginning: int | None
    # Further ids at which a sample ends, as that behind an answer of a model for chats.
    more_ends: Sequence[int]

    def encode(self, text: str) -> list[int]:
        """Ids of a text; UserError names what cannot be encoded."""
        ...

    def encode_batch(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Ids of each text, uint32, in their order; texts may be read ahead. Errors are as for encode."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Text of any ids; what is no text becomes U+FFFD."""
        ...

    def byte_lengths(self) -> np.ndarray:
        """UTF-8 bytes of text that each id stands for, int64 (n_vocab,); 0 for end-of-text."""
        ...

    def to_dict(self) -> dict:
        """Everything that from_dict needs, in plain JSON types."""
        ...


def beginning_of(tokenizer: Tokenizer) -> int | None:
    """The id that stands before a text for other programs: the tokenizer's own, or else the one between documents."""
    if tokenizer.before:
        return tokenizer.before[0]
    return tokenizer.end_of_text if tokenizer.beginning is None else tokenizer.beginning


def before_documents(tokenizer: Tokenizer) -> list[int]:
    """The ids before each document of a prepared text; none if the id before a text is end-of-text, which ends each."""
    before = list(tokenizer.before)
    return [] if before == [tokenizer.end_of_text] else before


def without_beginning(tokenizer: Tokenizer, ids: np.ndarray) -> np.ndarray:
    """The ids of a document, (n,), without those that a preparation or a chat template has put before its text."""
    before = list(tokenizer.before)
    if before and ids[: len(before)].tolist() == before:
        return ids[len(before) :]
    return ids[1:] if len(ids) and ids[0] == beginning_of(tokenizer) else ids
