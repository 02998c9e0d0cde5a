"""The interface of a tokenizer, and the documents that its builder reads."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from gptmini.tokenizer.chat import ChatEncoder

END_OF_TEXT = "<|endoftext|>"  # GPT-2's name for the id between documents
REPLACEMENT = "\ufffd"  # text of an id outside the vocabulary, or of an incomplete character


class Document(NamedTuple):
    """A document of a corpus, or a part of it. A long document arrives as several parts in order."""

    split: str | None  # train, or val for held-out text; None if val_fraction determines the split
    text: str
    ends: bool = True  # whether the document ends with this part
    where: str = ""  # file and line or row for messages; empty if unknown


class Tokenizer(Protocol):
    """Converts between text and ids."""

    kind: str  # the class that from_dict rebuilds
    n_vocab: int  # number of ids, including end-of-text
    end_of_text: int | None  # id that separates documents; None if the tokenizer has no such id
    prefix_ids: Sequence[int]  # ids that a model expects before a text
    # Id of bos_token. Other programs put it before a text. None if there are prefix_ids, or if it is end_of_text.
    bos_id: int | None
    # More ids at which a sample ends, such as the id after an answer of a chat model.
    more_ends: Sequence[int]

    # Jinja source with which chats are encoded; None for a tokenizer without a chat template.
    chat_template: str | None

    @property
    def chat_encoder(self) -> "ChatEncoder":
        """The encoder for chats; UserError without a chat template."""
        ...

    def with_template(self, template: str) -> "Tokenizer":
        """Return this tokenizer with a chat template."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; raise UserError if a character cannot be encoded."""
        ...

    def encode_batch(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Yield the ids of each text in order, uint32; texts may be read ahead. Errors are the same as for encode."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of any ids. Ids outside the vocabulary and bytes that are not UTF-8 become U+FFFD."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of text that an id stands for."""
        ...

    def byte_lengths(self) -> np.ndarray:
        """Return the number of UTF-8 bytes of each id's text, int64 (n_vocab,); 0 for end-of-text."""
        ...

    def to_dict(self) -> dict:
        """Return the state for from_dict in plain JSON types."""
        ...


def bos_id_of(tokenizer: Tokenizer) -> int | None:
    """Return the beginning-of-sequence id (BOS) for other programs. Without a BOS, return end-of-text."""
    if tokenizer.prefix_ids:
        return tokenizer.prefix_ids[0]
    return tokenizer.end_of_text if tokenizer.bos_id is None else tokenizer.bos_id


def document_prefix(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that preparation puts before each document.

    The list is empty if the only id before a text is end-of-text, because end-of-text already separates documents.
    """
    prefix = list(tokenizer.prefix_ids)
    return [] if prefix == [tokenizer.end_of_text] else prefix


def without_prefix(tokenizer: Tokenizer, ids: np.ndarray) -> np.ndarray:
    """Return the ids of a document, (n,), without the ids that preparation or a chat template put before its text."""
    prefix = list(tokenizer.prefix_ids)
    if prefix and ids[: len(prefix)].tolist() == prefix:
        return ids[len(prefix) :]
    return ids[1:] if len(ids) and ids[0] == bos_id_of(tokenizer) else ids
