"""The interface of a tokenizer, and the documents that the builder of a tokenizer reads."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import NamedTuple, Protocol

import numpy as np

from gptmini.tokenizer.chat.coder import ChatVocabulary

END_OF_TEXT = "<|endoftext|>"  # GPT-2's name for the id between documents
REPLACEMENT = "\ufffd"  # replaces an id outside the vocabulary, or an incomplete character


class Document(NamedTuple):
    """A document of a corpus, or a part of it. A long document arrives as several parts in order."""

    # 'train', or 'val' for held-out text. None if val_fraction determines the split.
    split: str | None
    text: str
    ends: bool = True  # whether the document ends with this part
    where: str = ""  # the file and the line or row, for messages; empty if unknown


class Tokenizer(Protocol):
    """A tokenizer, which converts text to ids and ids to text. The defaults are those of a tokenizer without BOS."""

    kind: str  # the name of the class, with which from_dict rebuilds the tokenizer
    n_vocab: int  # number of ids, including end-of-text
    end_of_text: int | None  # id that separates documents; None if the tokenizer has no such id
    # The bytes of text that each id stands for. Ids that only the model has are missing.
    bytes_of: Mapping[int, bytes]
    prefix_ids: Sequence[int] = ()  # ids that a model expects before a text
    prefix_text: str = ""  # text that encoding adds before each text, such as a space
    # The id of bos_token. Other programs put this id before a text. None if there are prefix_ids, or if the id of
    # bos_token is end_of_text.
    bos_id: int | None = None
    # The Jinja source of the template that encodes chats. None if the tokenizer has no chat template.
    chat_template: str | None = None

    @property
    def more_ends(self) -> Sequence[int]:
        """Other ids at which a sample ends too, such as the id that closes an answer in the chat template."""
        return ()

    @property
    def ends(self) -> list[int]:
        """The ids at which a sample ends."""
        return [i for i in (self.end_of_text, *self.more_ends) if i is not None]

    def chat_vocabulary(self) -> ChatVocabulary:
        """Return what the encoder of chats needs. Use chat_encoder_of to get the encoder."""
        ...

    def with_template(self, template: str) -> "Tokenizer":
        """Return a copy of this tokenizer that uses the given chat template."""
        tokenizer = copy(self)
        tokenizer.chat_template = template
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without prefix_ids. The string <|endoftext|> in it is ordinary text.

        Raises UserError if a character cannot be encoded, such as a lone surrogate.
        """
        return next(self.encode_batch([text])).tolist()

    def encode_batch(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Yield the ids of each text, in order, as a uint32 array of shape (n,).

        Texts may be read ahead. Raises the same errors as encode.
        """
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text that ids stand for. Ids outside the vocabulary and invalid UTF-8 become U+FFFD.

        Each id always stands for the same bytes. Therefore, parts of the ids can be decoded separately and joined.
        """
        unknown = REPLACEMENT.encode()
        joined = b"".join([self.bytes_of.get(i, unknown) for i in ids])
        return joined.decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of text that an id stands for. Return no bytes if only the model has this id."""
        return self.bytes_of.get(token, b"")

    def byte_lengths(self) -> np.ndarray:
        """Return the number of bytes of each id as an int64 array of shape (n_vocab,).

        The number is 0 for end-of-text, for the ids before a text, and for the ids that only the model has.
        """
        lengths = np.zeros(self.n_vocab, dtype=np.int64)
        for i, token in self.bytes_of.items():
            lengths[i] = 0 if i == self.end_of_text or i in self.prefix_ids else len(token)
        return lengths

    def to_dict(self) -> dict:
        """Return the state that from_dict reads, in plain JSON types."""
        ...


def bos_id_of(tokenizer: Tokenizer) -> int | None:
    """Return the beginning-of-sequence id (BOS) for other programs. If there is no BOS, return end-of-text."""
    if tokenizer.prefix_ids:
        return tokenizer.prefix_ids[0]
    return tokenizer.end_of_text if tokenizer.bos_id is None else tokenizer.bos_id


def document_prefix(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that preparation puts before each document, except end-of-text, which already separates them."""
    prefix = list(tokenizer.prefix_ids)
    return [] if prefix == [tokenizer.end_of_text] else prefix


def without_prefix(tokenizer: Tokenizer, ids: np.ndarray) -> np.ndarray:
    """Return the ids of a document, (n,), without the ids that preparation or a template put before its text."""
    prefix = list(tokenizer.prefix_ids)
    if prefix and ids[: len(prefix)].tolist() == prefix:
        return ids[len(prefix) :]
    return ids[1:] if len(ids) and ids[0] == bos_id_of(tokenizer) else ids
