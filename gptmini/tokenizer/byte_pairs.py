"""Byte-pair tokenizers that tiktoken runs. The vocabulary is the bytes, GPT-2's vocabulary, or learned from text."""

import base64
import os
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
import tiktoken

from gptmini.system.errors import UserError
from gptmini.tokenizer.chat.plain import plain_vocabulary
from gptmini.tokenizer.pieces import MARK, MARKED_PATTERN, SEPARATOR, SPLIT_PATTERN, insert_marks
from gptmini.tokenizer.tokenizer import END_OF_TEXT, Document, Tokenizer

BYTE_PATTERN = r"[\s\S]"  # each character is a piece, so that no merge applies
ALL_BYTES = [bytes([i]) for i in range(256)]

# Short documents are encoded together, up to this number of characters, for two reasons. Starting a call to tiktoken
# takes as long as encoding a hundred characters, and tiktoken releases the GIL only inside a call.
GROUP = 2**20


class BytePairTokenizer(Tokenizer):
    """A tokenizer that uses a tiktoken encoding.

    A pattern splits the text into pieces. Within a piece, tiktoken merges bytes in the order of their ranks.
    """

    kind = "byte_pair"
    chat_vocabulary = plain_vocabulary

    def __init__(self, pattern: str, ranks: list[bytes]) -> None:
        """Build the tokenizer from a pattern and the byte strings in the order of their ranks.

        The id of end-of-text follows the rank of the last byte string. Raises UserError unless the byte strings are
        distinct and contain every single byte, and the pattern is SPLIT_PATTERN or BYTE_PATTERN.
        """
        rank_of = {token: rank for rank, token in enumerate(ranks)}
        n_single = sum(len(token) == 1 for token in rank_of)
        are_distinct = len(rank_of) == len(ranks)
        if not are_distinct or n_single != 256 or b"" in rank_of:
            raise UserError(
                f"ranks must be distinct and include all 256 bytes, got {len(ranks)} byte strings"
            )
        # A different pattern could drop text, or matching could take forever.
        if pattern not in (SPLIT_PATTERN, BYTE_PATTERN):
            raise UserError(
                f"pattern must be one of the patterns of this gptmini version, got {pattern!r}"
            )

        self.pattern = pattern
        self.ranks = ranks
        self.end_of_text: int | None = len(ranks)
        self.n_vocab = len(ranks) + 1
        self.bytes_of = dict(enumerate([*ranks, END_OF_TEXT.encode()]))
        self._is_byte = pattern == BYTE_PATTERN and ranks == ALL_BYTES

    def encode_batch(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Yield the ids of each text as a uint32 array of shape (n,). Raises the same errors as encode.

        Short texts are read ahead and encoded together. The ids are not converted to Python objects.
        """
        for group in group_texts(texts):
            yield from self._encode_group(group)

    def to_dict(self) -> dict:
        """Return the state that from_dict reads, in plain JSON types. Byte strings are encoded in base64."""
        ranks = [base64.b64encode(token).decode() for token in self.ranks]
        state: dict = {"kind": self.kind, "pattern": self.pattern, "ranks": ranks}
        if self.chat_template is not None:
            state["chat_template"] = self.chat_template
        return state

    @cached_property
    def _encoding(self) -> tiktoken.Encoding:
        return self._encoding_by(self.pattern, specials=[])

    @cached_property
    def _marked_encoding(self) -> tiktoken.Encoding:
        """The faster tiktoken encoding for text with marks. The ids of MARK and SEPARATOR follow the vocabulary."""
        return self._encoding_by(MARKED_PATTERN, specials=[MARK, SEPARATOR])

    def _encoding_by(self, pattern: str, *, specials: list[str]) -> tiktoken.Encoding:
        return tiktoken.Encoding(
            "gptmini",
            pat_str=pattern,
            mergeable_ranks={token: rank for rank, token in enumerate(self.ranks)},
            special_tokens={special: self.n_vocab + i for i, special in enumerate(specials)},
        )

    def _encode_group(self, texts: list[str]) -> Iterator[np.ndarray]:
        """Yield the ids of each text as a uint32 array of shape (n,). If possible, call tiktoken once for all texts."""
        joined = SEPARATOR.join(texts)
        can_be_marked = MARK not in joined and joined.count(SEPARATOR) == len(texts) - 1
        if self.pattern == BYTE_PATTERN or not can_be_marked:
            yield from map(self._encode_one, texts)
            return

        try:
            joined = insert_marks(joined)
        except UnicodeEncodeError:  # encode each text separately, so that errors have positions
            yield from map(self._encode_one, texts)
            return

        # tiktoken encodes the text between two special tokens independently of other text.
        ids = self._marked_encoding.encode_to_numpy(
            joined, allowed_special={MARK, SEPARATOR}, disallowed_special=()
        )
        mark, separator = self.n_vocab, self.n_vocab + 1
        ids = ids[ids != mark]
        start = 0
        for end in np.flatnonzero(ids == separator):
            yield ids[start:end]
            start = end + 1
        yield ids[start:]

    def _encode_one(self, text: str) -> np.ndarray:
        try:
            data = text.encode()  # raises an error for a lone surrogate, which tiktoken may accept
            if self._is_byte:
                return np.frombuffer(data, dtype=np.uint8).astype(np.uint32)
            return self._encoding.encode_to_numpy(text, disallowed_special=())
        except UnicodeEncodeError as error:
            raise UserError(
                f"text must not contain lone surrogates, got U+{ord(text[error.start]):04X} "
                f"at position {error.start}; check that the input is UTF-8"
            ) from None
        except ValueError as error:  # tiktoken's pattern limits the length of white space
            raise UserError(
                "text must not contain a million white-space characters in a row near U+0000 or U+0001 "
                f"({error}); remove these characters or use tokenizer=byte"
            ) from error


def byte(documents: Iterable[Document]) -> BytePairTokenizer:
    """Return a tokenizer with an id for each of the 256 bytes and for end-of-text. The documents are not read."""
    return BytePairTokenizer(BYTE_PATTERN, ALL_BYTES)


def gpt2(documents: Iterable[Document]) -> BytePairTokenizer:
    """Return OpenAI's GPT-2 tokenizer from tiktoken's cache or from the network. The documents are not read."""
    try:
        encoding = tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:  # the network, the disk, or wrong content
        cache = os.environ.get("TIKTOKEN_CACHE_DIR", "unset")
        raise UserError(
            f"cannot load tokenizer=gpt2 ({type(error).__name__}); connect to the network once, put tiktoken's two "
            f"files into TIKTOKEN_CACHE_DIR (now {cache}), or use tokenizer=bpe"
        ) from error
    ranks = [encoding.decode_single_token_bytes(i) for i in range(encoding.n_vocab - 1)]
    return BytePairTokenizer(SPLIT_PATTERN, ranks)


def group_texts(texts: Iterable[str]) -> Iterator[list[str]]:
    """Group texts in order, with at most GROUP characters per group. A text that is longer gets its own group."""
    group: list[str] = []
    n_characters = 0
    for text in texts:
        if group and n_characters + len(text) > GROUP:
            yield group
            group = []
            n_characters = 0
        group.append(text)
        n_characters += len(text)
    if group:
        yield group
