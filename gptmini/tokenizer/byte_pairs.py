"""Byte pairs: bytes, GPT-2's vocabulary, and whatever has been learned, as encodings of tiktoken."""

import base64
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import tiktoken

from gptmini.tokenizer.pieces import MARK, MARKED_PATTERN, SEPARATOR, SPLIT_PATTERN, marked
from gptmini.tokenizer.tokenizer import END_OF_TEXT, REPLACEMENT, Document
from gptmini.user_error import UserError

BYTE_PATTERN = r"[\s\S]"  # each character a piece of its own, so that no merge could apply
ALL_BYTES = [bytes([i]) for i in range(256)]

# Characters of short documents that are encoded together. A call of tiktoken costs as much as the encoding of a
# hundred characters, and another thread can only run during a call.
GROUP = 2**20


class BytePairTokenizer:
    """Bytes, merged in the order of their ranks inside the pieces that the pattern cuts: a tiktoken encoding."""

    kind = "byte_pair"
    before: Sequence[int] = ()
    beginning: int | None = None
    more_ends: Sequence[int] = ()

    def __init__(self, pattern: str, ranks: list[bytes]) -> None:
        """Take the pattern and the byte strings in order of their ranks; the rank after them ends a document.

        Raises UserError: a byte string given twice or empty, a single byte missing, or a pattern other than
        SPLIT_PATTERN and BYTE_PATTERN.
        """
        rank_of = {token: rank for rank, token in enumerate(ranks)}
        n_single = sum(len(token) == 1 for token in rank_of)
        are_distinct = len(rank_of) == len(ranks)
        if not are_distinct or n_single != 256 or b"" in rank_of:
            raise UserError(
                f"ranks must be distinct and hold every single byte, got {len(ranks)} byte strings"
            )
        # Another pattern could drop text, or take for ever to match.
        if pattern not in (SPLIT_PATTERN, BYTE_PATTERN):
            raise UserError(f"pattern must be the one of this version, got {pattern!r}")

        self.pattern = pattern
        self.ranks = ranks
        self.end_of_text: int | None = len(ranks)
        self.n_vocab = len(ranks) + 1
        self._bytes_of = dict(enumerate([*ranks, END_OF_TEXT.encode()]))
        self._is_byte = pattern == BYTE_PATTERN and ranks == ALL_BYTES

    def encode(self, text: str) -> list[int]:
        """Ids of text, in which the end-of-text string is text; UserError for a lone surrogate: it has no bytes."""
        return next(self.encode_batch([text])).tolist()

    def encode_batch(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Ids of each text, uint32, without a Python object for each id; errors as encode.

        Short texts are read ahead, and encoded together.
        """
        for group in in_groups(texts, GROUP):
            yield from self._encode_group(group)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; bytes that are no UTF-8 and ids outside the vocabulary become U+FFFD."""
        return decoded(ids, self._bytes_of)

    def byte_lengths(self) -> np.ndarray:
        """Bytes of each byte string, int64 (n_vocab,); 0 for end-of-text."""
        return np.array([*map(len, self.ranks), 0], dtype=np.int64)

    def to_dict(self) -> dict:
        """Everything that from_dict needs, in plain JSON types; byte strings in base64."""
        ranks = [base64.b64encode(token).decode() for token in self.ranks]
        return {"kind": self.kind, "pattern": self.pattern, "ranks": ranks}

    @cached_property
    def _encoding(self) -> tiktoken.Encoding:
        """The encoding of any text."""
        return self._encoding_by(self.pattern, specials=[])

    @cached_property
    def _marked_encoding(self) -> tiktoken.Encoding:
        """The faster encoding of marked text, in which MARK and SEPARATOR have ids behind the vocabulary."""
        return self._encoding_by(MARKED_PATTERN, specials=[MARK, SEPARATOR])

    def _encoding_by(self, pattern: str, *, specials: list[str]) -> tiktoken.Encoding:
        return tiktoken.Encoding(
            "gptmini",
            pat_str=pattern,
            mergeable_ranks={token: rank for rank, token in enumerate(self.ranks)},
            special_tokens={special: self.n_vocab + i for i, special in enumerate(specials)},
        )

    def _encode_group(self, texts: list[str]) -> Iterator[np.ndarray]:
        """Ids of each text, uint32, by one call of tiktoken where it can be one."""
        joined = SEPARATOR.join(texts)
        can_be_marked = MARK not in joined and joined.count(SEPARATOR) == len(texts) - 1
        if self.pattern == BYTE_PATTERN or not can_be_marked:
            yield from map(self._encode_one, texts)
            return

        try:
            joined = marked(joined)
        except UnicodeEncodeError:  # of one of the texts, whose error names the place in this text
            yield from map(self._encode_one, texts)
            return

        # tiktoken encodes what stands between special tokens as if it stood alone.
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
        """Ids of a text, uint32; errors as for encode."""
        try:
            data = text.encode()  # raises for a lone surrogate, whatever tiktoken would make of it
            if self._is_byte:
                return np.frombuffer(data, dtype=np.uint8).astype(np.uint32)
            return self._encoding.encode_to_numpy(text, disallowed_special=())
        except UnicodeEncodeError as error:
            raise UserError(
                f"text must be Unicode without lone surrogates, got U+{ord(text[error.start]):04X} "
                f"at position {error.start}; was the input not UTF-8?"
            ) from None
        except ValueError as error:  # the limit of tiktoken's regular expression on white space
            raise UserError(
                "text must not hold a million white-space characters in a row near a character U+0000 or U+0001 "
                f"({error}); remove them or use tokenizer=byte"
            ) from error


def byte(documents: Iterable[Document]) -> BytePairTokenizer:
    """Tokenizer of the 256 bytes and end-of-text; the documents are not read."""
    return BytePairTokenizer(BYTE_PATTERN, ALL_BYTES)


def gpt2(documents: Iterable[Document]) -> BytePairTokenizer:
    """OpenAI's GPT-2 tokenizer, from tiktoken's cache or else the network; the documents are not read.

    Raises UserError: neither the cache nor the network has it.
    """
    try:
        encoding = tiktoken.get_encoding("gpt2")
    # Of the network or the disk; of a file with other content.
    except (OSError, ValueError) as error:
        cache = os.environ.get("TIKTOKEN_CACHE_DIR", "unset")
        raise UserError(
            f"tokenizer=gpt2 needs the network once, or tiktoken's two files in TIKTOKEN_CACHE_DIR (now {cache}); "
            f"without either use tokenizer=bpe ({type(error).__name__})"
        ) from error
    ranks = [encoding.decode_single_token_bytes(i) for i in range(encoding.n_vocab - 1)]
    return BytePairTokenizer(SPLIT_PATTERN, ranks)


def decoded(ids: Iterable[int], bytes_of: Mapping[int, bytes]) -> str:
    """Text of ids by their bytes; bytes that are no UTF-8 and ids that bytes_of lacks become U+FFFD."""
    unknown = REPLACEMENT.encode()
    joined = b"".join([bytes_of.get(i, unknown) for i in ids])
    return joined.decode("utf-8", errors="replace")


def in_groups(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Put texts together to groups of about `size` characters, in their order; a longer text is a group by itself."""
    group: list[str] = []
    n_characters = 0
    for text in texts:
        if group and n_characters + len(text) > size:
            yield group
            group = []
            n_characters = 0
        group.append(text)
        n_characters += len(text)
    if group:
        yield group
