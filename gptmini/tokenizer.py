"""Text to token ids and back. Byte, trained BPE and GPT-2 are tiktoken encodings; characters need no library.

A tokenizer has encode, encode_batch, decode, n_vocab, end_of_text, to_dict and kind; a builder takes two splits' texts.
"""

import base64
import os
from collections.abc import Iterable, Iterator

import numpy as np
import tiktoken

from gptmini.checks import UserError, shown

END_OF_TEXT = "<|endoftext|>"  # GPT-2's; separates documents
REPLACEMENT = "�"  # what an id outside the vocabulary decodes to

# GPT-2's own rule for where a merge may not cross: contractions, words, numbers, punctuation, spaces
# (Radford et al. 2019, section 2.2), in tiktoken's spelling with possessive quantifiers.
SPLIT_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""

BYTE_PATTERN = r"[\s\S]"
LARGEST_BPE = 2**20  # ids; the trainer reserves 70 bytes for each before it begins
LONGEST_PIECE = r"[\s\S]{1,1000}"  # training takes the square of a piece's length; encoding does not mind


class CharTokenizer:
    """One id a character, in code-point order; the id after them ends a document where there are several."""

    kind = "char"

    def __init__(self, characters: str, *, end_of_text: bool) -> None:
        """Take the characters in order of their ids; UserError for no character, or one given twice."""
        if type(characters) is not str or not characters or len(set(characters)) != len(characters):
            raise UserError(f"characters must be a text of distinct characters, got {characters!r}")
        if type(end_of_text) is not bool:
            raise UserError(f"end_of_text must be true or false, got {end_of_text!r}")
        self.characters = characters
        self.end_of_text = len(characters) if end_of_text else None
        self.n_vocab = len(characters) + end_of_text
        self._ids = {character: i for i, character in enumerate(characters)}

    def encode(self, text: str) -> list[int]:
        """Ids of text; UserError for a character that was in neither split; it is named."""
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            character = error.args[0]
            raise UserError(
                f"every character must be among the {len(self.characters)} that were trained on, "
                f"got {character!r} (U+{ord(character):04X}) at position {text.index(character)}"
            ) from None

    def encode_batch(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Ids of each text, uint32, one text at a time."""
        for text in texts:
            yield np.array(self.encode(text), dtype=np.uint32)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; an id outside the vocabulary becomes U+FFFD."""
        names = (*self.characters, END_OF_TEXT)[: self.n_vocab]
        return "".join(names[i] if 0 <= i < self.n_vocab else REPLACEMENT for i in ids)

    def to_dict(self) -> dict:
        """Everything that from_dict needs, in plain JSON types."""
        return {"kind": self.kind, "characters": self.characters, "end_of_text": self.end_of_text is not None}


class BytePairTokenizer:
    """Bytes, merged in the order of their ranks inside the pieces that the pattern cuts: a tiktoken encoding."""

    kind = "byte_pair"

    def __init__(self, pattern: str, ranks: list[bytes]) -> None:
        """Take the pattern and the byte strings in order of their ranks; the rank after them ends a document.

        UserError for a byte string given twice or empty, a single byte missing, or a pattern not of ours.
        """
        rank_of = {token: rank for rank, token in enumerate(ranks)}
        single = sum(len(token) == 1 for token in rank_of)
        if len(rank_of) != len(ranks) or single != 256 or b"" in rank_of:
            raise UserError(f"ranks must be distinct and hold every single byte, got {len(ranks)} byte strings")
        if pattern not in (SPLIT_PATTERN, BYTE_PATTERN):  # another could drop text or never end
            raise UserError(f"pattern must be the one of this version, got {pattern!r}")

        self.pattern = pattern
        self.ranks = ranks
        self.end_of_text = len(ranks)
        self.n_vocab = len(ranks) + 1
        special = {END_OF_TEXT: self.end_of_text}
        self._encoding = tiktoken.Encoding("gptmini", pat_str=pattern, mergeable_ranks=rank_of, special_tokens=special)

    def encode(self, text: str) -> list[int]:
        """Ids of text, in which the end-of-text string is text; UserError for a lone surrogate: it has no bytes."""
        return next(self.encode_batch([text])).tolist()

    def encode_batch(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Ids of each text, uint32, one text at a time, without a Python object for each id; errors as encode."""
        for text in texts:
            try:
                text.encode()  # refuses a lone surrogate, whatever tiktoken would make of it
                yield self._encoding.encode_to_numpy(text, disallowed_special=())
            except UnicodeEncodeError as error:
                raise UserError(
                    f"text must be Unicode without lone surrogates, got U+{ord(text[error.start]):04X} "
                    f"at position {error.start}; was the input not UTF-8?"
                ) from None
            except ValueError as error:  # tiktoken's regular expression has a limit on one run of white space
                raise UserError(
                    f"text must not hold a million white-space characters in a row ({error}); "
                    "remove them or use tokenizer=byte"
                ) from error

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; bytes that are no UTF-8 and ids outside the vocabulary become U+FFFD."""
        names = {self.end_of_text: END_OF_TEXT.encode()}
        pieces = (self.ranks[i] if 0 <= i < len(self.ranks) else names.get(i, REPLACEMENT.encode()) for i in ids)
        return b"".join(pieces).decode("utf-8", errors="replace")

    def to_dict(self) -> dict:
        """Everything that from_dict needs, in plain JSON types; byte strings in base64."""
        ranks = [base64.b64encode(token).decode() for token in self.ranks]
        return {"kind": self.kind, "pattern": self.pattern, "ranks": ranks}


Tokenizer = CharTokenizer | BytePairTokenizer


def from_dict(state: dict) -> Tokenizer:
    """Rebuild a tokenizer from its to_dict(); UserError for another kind, or fields that make no tokenizer."""
    try:
        if state["kind"] == CharTokenizer.kind:
            return CharTokenizer(state["characters"], end_of_text=state["end_of_text"])
        if state["kind"] == BytePairTokenizer.kind:
            ranks = [base64.b64decode(token, validate=True) for token in state["ranks"]]
            return BytePairTokenizer(state["pattern"], ranks)
    except ValueError as error:  # our own, or base64's
        raise UserError(" ".join(str(error).split())) from None
    except Exception as error:  # of whatever class: the fields are a stranger's
        raise UserError(f"a tokenizer must have kind and its fields, got {type(error).__name__}: {error}") from None

    kind = shown(state["kind"])
    raise UserError(f"tokenizer kind must be {CharTokenizer.kind} or {BytePairTokenizer.kind}, got {kind}")


def character(train: Iterable[str], val: Iterable[str]) -> CharTokenizer:
    """Tokenizer of every character of both splits; with an end-of-text id if either split has several documents."""
    characters: set[str] = set()
    several = False
    for split in (train, val):
        for n_documents, text in enumerate(split, start=1):
            characters.update(text)
            several = several or n_documents > 1
    return CharTokenizer("".join(sorted(characters)), end_of_text=several)


def byte(train: Iterable[str], val: Iterable[str]) -> BytePairTokenizer:
    """Tokenizer of the 256 bytes and end-of-text; the texts do not matter."""
    return BytePairTokenizer(BYTE_PATTERN, [bytes([i]) for i in range(256)])


def bpe(train: Iterable[str], val: Iterable[str], *, vocab_size: int) -> BytePairTokenizer:
    """Tokenizer with merges learned from the training split alone.

    vocab_size counts the 256 bytes, the merges and end-of-text; a short text may yield fewer merges.
    Raises UserError: vocab_size leaves no room for the bytes, or is beyond what training reserves memory for.
    Source: Sennrich et al. 2016, section 3.2, on bytes as in Radford et al. 2019, section 2.2; trained by tokenizers.
    """
    from tokenizers import Regex, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Trainable

    if type(vocab_size) is not int or not 257 <= vocab_size <= LARGEST_BPE:
        raise UserError(f"vocab_size must be from 257 (bytes, end of text) to {LARGEST_BPE}, got {shown(vocab_size)}")

    learner = Trainable(models.BPE())
    cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in (SPLIT_PATTERN, LONGEST_PIECE)]
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # one for each byte
    learner.pre_tokenizer = pre_tokenizers.Sequence([*cuts, letters])
    trainer = trainers.BpeTrainer(vocab_size=vocab_size - 1, initial_alphabet=letters.alphabet(), show_progress=False)
    learner.train_from_iterator(train, trainer)
    by_rank = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    to_byte = _byte_of_letter()
    learned = [bytes(to_byte[letter] for letter in token) for token, _ in by_rank if len(token) > 1]
    return BytePairTokenizer(SPLIT_PATTERN, [bytes([i]) for i in range(256)] + learned)


def gpt2(train: Iterable[str], val: Iterable[str]) -> BytePairTokenizer:
    """OpenAI's GPT-2 tokenizer, from tiktoken's cache or else the network; UserError if neither has it."""
    try:
        encoding = tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong file is a ValueError
        cache = os.environ.get("TIKTOKEN_CACHE_DIR", "unset")
        raise UserError(
            f"tokenizer=gpt2 needs the network once, or tiktoken's two files in TIKTOKEN_CACHE_DIR (now {cache}); "
            f"without either use tokenizer=bpe ({type(error).__name__})"
        ) from error
    ranks = [encoding.decode_single_token_bytes(i) for i in range(encoding.n_vocab - 1)]
    return BytePairTokenizer(SPLIT_PATTERN, ranks)


def _byte_of_letter() -> dict[str, int]:
    """Undo bytes_to_unicode of GPT-2's code: printable Latin-1 stands for itself, other bytes follow from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
