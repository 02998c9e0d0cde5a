"""Text to token ids and back. Byte, trained BPE and GPT-2 are tiktoken encodings; characters need no library.

A builder (character, byte, bpe, gpt2) makes a tokenizer for the documents of a corpus.
"""

import base64
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
import tiktoken

from gptmini.checks import UserError, shown, whole

END_OF_TEXT = "<|endoftext|>"  # the name that GPT-2 gives to the id between documents
REPLACEMENT = "\ufffd"  # what an id outside the vocabulary, or half a character, decodes to

# GPT-2's own rule for where a merge may not cross: contractions, words, numbers, punctuation, spaces
# (Radford et al. 2019, section 2.2), in tiktoken's spelling with possessive quantifiers.
SPLIT_PATTERN = (
    r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
)

BYTE_PATTERN = r"[\s\S]"  # each character a piece of its own, so that no merge could apply
ALL_BYTES = [bytes([i]) for i in range(256)]
LARGEST_BPE = 2**20  # ids; the trainer reserves 70 bytes for each before it begins

# Training takes time that grows with the square of a piece's length, so longer pieces are cut; encoding does not mind.
LONGEST_PIECE = r"[\s\S]{1,1000}"

# Characters of text that the trainer is given at once. It takes nearly a hundred bytes for each of them, and keeps
# nothing but the number of times that each word has come when it is given the next.
SLICE = 2**20
# Characters of a slice where only some slices are trained on: small, so that the sample comes from all over the text.
SAMPLED_SLICE = 2**14

# Characters of short documents that are encoded together. A call of tiktoken costs as much as the encoding of a
# hundred characters, and another thread can only run during a call.
GROUP = 2**20


class Part(Protocol):
    """A document of a corpus, or a part of one, as the builder of a tokenizer reads it."""

    @property
    def split(self) -> str | None:
        """Split of the document: train or val."""
        ...

    @property
    def text(self) -> str:
        """Text of the part."""
        ...

    @property
    def ends(self) -> bool:
        """Whether the document ends with this part."""
        ...


class Tokenizer(Protocol):
    """Turns text into ids and back."""

    kind: str  # which class from_dict rebuilds
    n_vocab: int  # ids, end-of-text included
    end_of_text: int | None  # id that separates documents; None for a tokenizer without one

    def encode(self, text: str) -> list[int]:
        """Ids of a text; UserError names what cannot be encoded."""
        ...

    def encode_batch(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Ids of each text, uint32, one text at a time; errors as for encode."""
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


class CharTokenizer:
    """One id a character, in code-point order; the id after them ends a document where there are several."""

    kind = "char"

    def __init__(self, characters: str, *, end_of_text: bool) -> None:
        """Take the characters in order of their ids; UserError for no character, or one given twice."""
        is_text = type(characters) is str and characters != ""
        if not is_text or len(set(characters)) != len(characters):
            raise UserError(f"characters must be a text of distinct characters, got {characters!r}")
        if type(end_of_text) is not bool:
            raise UserError(f"end_of_text must be true or false, got {end_of_text!r}")

        self.characters = characters
        self.n_vocab = len(characters)
        self.end_of_text: int | None = None
        if end_of_text:
            self.end_of_text = len(characters)
            self.n_vocab += 1

        # The id of each code point up to the largest; what has no id stands behind the vocabulary.
        codes = _code_points(characters)
        self._unknown = self.n_vocab
        self._id_of = np.full(int(codes.max()) + 2, self._unknown, dtype=np.uint32)
        self._id_of[codes] = np.arange(len(codes), dtype=np.uint32)

    def encode(self, text: str) -> list[int]:
        """Ids of text; UserError for a character that was in neither split; it is named."""
        return next(self.encode_batch([text])).tolist()

    def encode_batch(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Ids of each text, uint32, one text at a time; errors as for encode."""
        largest = len(self._id_of) - 1
        for text in texts:
            codes = _code_points(text)
            ids = self._id_of[np.minimum(codes, largest)]
            unknown = np.flatnonzero(ids == self._unknown)
            if unknown.size:
                position = int(unknown[0])
                character = text[position]
                raise UserError(
                    f"every character must be among the {len(self.characters)} that were trained on, "
                    f"got {character!r} (U+{ord(character):04X}) at position {position}"
                )
            yield ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; an id outside the vocabulary becomes U+FFFD."""
        return "".join(self._decode_one(i) for i in ids)

    def byte_lengths(self) -> np.ndarray:
        """UTF-8 bytes of each character, int64 (n_vocab,); 0 for end-of-text."""
        lengths = np.zeros(self.n_vocab, dtype=np.int64)
        lengths[: len(self.characters)] = [len(character.encode()) for character in self.characters]
        return lengths

    def to_dict(self) -> dict:
        """Everything that from_dict needs, in plain JSON types."""
        return {
            "kind": self.kind,
            "characters": self.characters,
            "end_of_text": self.end_of_text is not None,
        }

    def _decode_one(self, i: int) -> str:
        if 0 <= i < len(self.characters):
            return self.characters[i]
        if i == self.end_of_text:
            return END_OF_TEXT
        return REPLACEMENT


class BytePairTokenizer:
    """Bytes, merged in the order of their ranks inside the pieces that the pattern cuts: a tiktoken encoding."""

    kind = "byte_pair"

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
        self._is_byte = pattern == BYTE_PATTERN and ranks == ALL_BYTES
        self._encoding = tiktoken.Encoding(
            "gptmini",
            pat_str=pattern,
            mergeable_ranks=rank_of,
            special_tokens={END_OF_TEXT: len(ranks)},
        )

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
        joined = b"".join(self._bytes_of(i) for i in ids)
        return joined.decode("utf-8", errors="replace")

    def byte_lengths(self) -> np.ndarray:
        """Bytes of each byte string, int64 (n_vocab,); 0 for end-of-text."""
        return np.array([*map(len, self.ranks), 0], dtype=np.int64)

    def to_dict(self) -> dict:
        """Everything that from_dict needs, in plain JSON types; byte strings in base64."""
        ranks = [base64.b64encode(token).decode() for token in self.ranks]
        return {"kind": self.kind, "pattern": self.pattern, "ranks": ranks}

    def _encode_group(self, texts: list[str]) -> Iterator[np.ndarray]:
        """Ids of each text, uint32, by one call of tiktoken where it can be one."""
        are_separable = not any(END_OF_TEXT in text for text in texts)
        if len(texts) == 1 or self._is_byte or not are_separable:
            for text in texts:
                yield self._encode_one(text)
            return

        # tiktoken encodes what stands between special tokens as if it stood alone.
        joined = END_OF_TEXT.join(texts)
        try:
            joined.encode()
            ids = self._encoding.encode_to_numpy(
                joined, allowed_special={END_OF_TEXT}, disallowed_special=()
            )
        except ValueError:  # of one of the texts, which raises the same again and is named then
            for text in texts:
                yield self._encode_one(text)
            return

        start = 0
        for end in np.flatnonzero(ids == self.end_of_text):
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
                f"text must not hold a million white-space characters in a row ({error}); "
                "remove them or use tokenizer=byte"
            ) from error

    def _bytes_of(self, i: int) -> bytes:
        if 0 <= i < len(self.ranks):
            return self.ranks[i]
        if i == self.end_of_text:
            return END_OF_TEXT.encode()
        return REPLACEMENT.encode()


def from_dict(state: dict) -> Tokenizer:
    """Rebuild a tokenizer from its to_dict(); UserError for another kind, or fields that make no tokenizer."""
    try:
        if state["kind"] == CharTokenizer.kind:
            return CharTokenizer(state["characters"], end_of_text=state["end_of_text"])
        if state["kind"] == BytePairTokenizer.kind:
            ranks = [base64.b64decode(token, validate=True) for token in state["ranks"]]
            return BytePairTokenizer(state["pattern"], ranks)
    except ValueError as error:  # a UserError of the tokenizer, or an error of base64
        raise UserError(" ".join(str(error).split())) from None
    except Exception as error:  # of any class: the fields may come from a stranger's file
        raise UserError(
            f"a tokenizer must have kind and its fields, got {type(error).__name__}: {error}"
        ) from None

    raise UserError(
        f"tokenizer kind must be {CharTokenizer.kind} or {BytePairTokenizer.kind}, "
        f"got {shown(state['kind'])}"
    )


def character(documents: Iterable[Part]) -> CharTokenizer:
    """Tokenizer of every character of both splits; with an end-of-text id if either split has several documents."""
    characters: set[str] = set()
    n_documents: Counter[str | None] = Counter()
    for part in documents:
        characters.update(part.text)
        n_documents[part.split] += part.ends
    are_several = any(n > 1 for n in n_documents.values())
    return CharTokenizer("".join(sorted(characters)), end_of_text=are_several)


def byte(documents: Iterable[Part]) -> BytePairTokenizer:
    """Tokenizer of the 256 bytes and end-of-text; the documents are not read."""
    return BytePairTokenizer(BYTE_PATTERN, ALL_BYTES)


def bpe(
    documents: Iterable[Part], *, vocab_size: int, train_bytes: int | None = None
) -> BytePairTokenizer:
    """Tokenizer with merges learned from the training split alone.

    Args:
        documents: of a corpus. With train_bytes, documents is iterated twice.
        vocab_size: counts the 256 bytes, the merges and end-of-text; a short text may yield fewer merges.
        train_bytes: most bytes of text to learn from; of a longer text a sample is drawn. None for no limit.

    Raises UserError: vocab_size leaves no room for the bytes, or is beyond what training reserves memory for; or
    train_bytes is not a whole number of at least 1.
    Source: Sennrich et al. 2016, section 3.2, on bytes as in Radford et al. 2019, section 2.2; trained by tokenizers.
    """
    from tokenizers import Regex, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Trainable

    check_vocab_size(vocab_size)
    whole("train_bytes", train_bytes, null="all of the text")
    learner = Trainable(models.BPE())
    by_rule = pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated")
    by_length = pre_tokenizers.Split(Regex(LONGEST_PIECE), behavior="isolated")
    to_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # one a byte
    learner.pre_tokenizer = pre_tokenizers.Sequence([by_rule, by_length, to_letters])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=to_letters.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator(_training_slices(documents, train_bytes), trainer)

    byte_of = _byte_of_letter()
    learned = []
    for token, _ in sorted(learner.get_vocab().items(), key=lambda item: item[1]):
        if len(token) > 1:
            learned.append(bytes(byte_of[letter] for letter in token))
    return BytePairTokenizer(SPLIT_PATTERN, ALL_BYTES + learned)


def _training_slices(documents: Iterable[Part], train_bytes: int | None) -> Iterator[str]:
    """Slices of the training text; of a text of more than train_bytes bytes, slices that are drawn at random."""
    share = 1.0
    if train_bytes is not None:
        n_bytes = sum(len(text.encode()) for text in _training_texts(documents))
        share = train_bytes / max(n_bytes, 1)
    if share >= 1:
        for text in _training_texts(documents):
            yield from in_slices(text, SLICE)
        return

    draw = random.Random(0)  # always the same sample of a text
    n_left = train_bytes or 0
    is_first = True
    for text in _training_texts(documents):
        for some in in_slices(text, SAMPLED_SLICE):
            if is_first or draw.random() < share:
                is_first = False
                yield some
                n_left -= len(some.encode())
                if n_left <= 0:
                    return


def _training_texts(documents: Iterable[Part]) -> Iterator[str]:
    """The texts of the training split."""
    return (part.text for part in documents if part.split == "train")


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


def in_slices(text: str, most: int) -> Iterator[str]:
    """Cut a text into parts of at most `most` characters, each behind a line break, or else behind a space.

    A part ends in the middle of a word only where `most` characters hold neither. Joined, the parts are the text.
    """
    start = 0
    while len(text) - start > most:
        end = text.rfind("\n", start, start + most) + 1
        if end == 0:
            end = text.rfind(" ", start, start + most) + 1
        if end == 0:
            end = start + most
        yield text[start:end]
        start = end
    yield text[start:]


def check_vocab_size(vocab_size: int) -> None:
    """Raise UserError unless bpe can learn a vocabulary of this size."""
    if type(vocab_size) is not int or not 257 <= vocab_size <= LARGEST_BPE:
        raise UserError(
            f"vocab_size must be from 257 (bytes, end of text) to {LARGEST_BPE}, "
            f"got {shown(vocab_size)}"
        )


def gpt2(documents: Iterable[Part]) -> BytePairTokenizer:
    """OpenAI's GPT-2 tokenizer, from tiktoken's cache or else the network; the documents are not read.

    Raises UserError: neither the cache nor the network has it.
    """
    try:
        encoding = tiktoken.get_encoding("gpt2")
    except (
        OSError,
        ValueError,
    ) as error:  # of the network or the disk; of a file with other content
        cache = os.environ.get("TIKTOKEN_CACHE_DIR", "unset")
        raise UserError(
            f"tokenizer=gpt2 needs the network once, or tiktoken's two files in TIKTOKEN_CACHE_DIR (now {cache}); "
            f"without either use tokenizer=bpe ({type(error).__name__})"
        ) from error
    ranks = [encoding.decode_single_token_bytes(i) for i in range(encoding.n_vocab - 1)]
    return BytePairTokenizer(SPLIT_PATTERN, ranks)


def _code_points(text: str) -> np.ndarray:
    """Unicode's number of each character, uint32 (n,); a lone surrogate counts as a character."""
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")


def _byte_of_letter() -> dict[str, int]:
    """The byte that each letter of the library's byte-level vocabulary stands for.

    It undoes bytes_to_unicode of GPT-2's code: a printable Latin-1 character stands for its own byte, and the other
    bytes have the characters from U+0100 on, in their order.
    """
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    byte_of = {}
    next_letter = 256
    for byte in range(256):
        if byte in printable:
            byte_of[chr(byte)] = byte
        else:
            byte_of[chr(next_letter)] = byte
            next_letter += 1
    return byte_of
