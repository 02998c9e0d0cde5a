"""Settings of the tokenizers. The method builder() of each class returns the builder of a tokenizer.

The builder's name and its keyword arguments identify prepared tokens, so do not rename them.
"""

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from gptmini.settings import STRICT
from gptmini.tokenizer.byte_pairs import byte, gpt2
from gptmini.tokenizer.characters import character
from gptmini.tokenizer.learning import VocabSize, bpe
from gptmini.tokenizer.tokenizer import Tokenizer, document_prefix


@dataclass(frozen=True, kw_only=True, config=STRICT)
class BytePairSettings:
    """Byte pairs learned from the training split; the fields are the arguments of bpe."""

    vocab_size: VocabSize
    train_bytes: PositiveInt | None = None

    def builder(self) -> partial:
        """Return bpe with these settings."""
        return partial(bpe, vocab_size=self.vocab_size, train_bytes=self.train_bytes)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ByteSettings:
    """The 256 bytes."""

    needs_no_text: ClassVar = True  # the tokenizer does not depend on the text

    def builder(self) -> partial:
        """Return byte, which has no settings."""
        return partial(byte)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CharacterSettings:
    """The characters of the text."""

    def builder(self) -> partial:
        """Return character, which has no settings."""
        return partial(character)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GPT2Settings:
    """GPT-2's byte pairs."""

    needs_no_text: ClassVar = True  # the tokenizer does not depend on the text

    def builder(self) -> partial:
        """Return gpt2, which has no settings."""
        return partial(gpt2)


def prebuilt(tokenizer: Tokenizer, *, name: str, sha256: str) -> partial:
    """Return a builder for an existing tokenizer. Its name and the digest sha256 identify the tokenizer.

    If preparation puts ids before each document, these ids are a keyword argument too. They change the fingerprint,
    because earlier versions did not write these ids.
    """
    before = document_prefix(tokenizer)
    keywords = {"sha256": sha256} | ({"before": before} if before else {})

    def build(documents: Iterable, **keywords: object) -> Tokenizer:
        return tokenizer

    build.__name__ = name
    return partial(build, **keywords)
