"""Settings of the tokenizers. The method builder() of each class returns the builder of a tokenizer.

The name and the keyword arguments of a builder identify prepared tokens. Therefore, do not rename builders or their
arguments.
"""

from collections.abc import Iterable
from functools import partial
from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from gptmini.settings import STRICT
from gptmini.tokenizer.byte_pairs import byte, gpt2
from gptmini.tokenizer.characters import character
from gptmini.tokenizer.learning import bpe
from gptmini.tokenizer.tokenizer import Tokenizer, document_prefix


@dataclass(frozen=True, kw_only=True, config=STRICT)
class BytePairSettings:
    """Settings for byte pairs that are learned from the training split. The fields are the arguments of bpe."""

    # At least the 256 bytes and end-of-text. Before the trainer starts, it reserves 70 bytes of memory per id.
    vocab_size: Annotated[int, Field(ge=257, le=2**20)]
    train_bytes: PositiveInt | None = None

    def builder(self) -> partial:
        """Return the function bpe with these settings as its arguments."""
        return partial(bpe, vocab_size=self.vocab_size, train_bytes=self.train_bytes)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ByteSettings:
    """Settings for the tokenizer that has one id for each of the 256 bytes."""

    needs_no_text: ClassVar = True  # the tokenizer does not depend on the text

    def builder(self) -> partial:
        """Return the function byte. It needs no settings."""
        return partial(byte)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CharacterSettings:
    """Settings for the tokenizer that has one id for each character of the text."""

    def builder(self) -> partial:
        """Return the function character. It needs no settings."""
        return partial(character)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GPT2Settings:
    """Settings for the tokenizer of GPT-2, which merges byte pairs."""

    needs_no_text: ClassVar = True  # the tokenizer does not depend on the text

    def builder(self) -> partial:
        """Return the function gpt2. It needs no settings."""
        return partial(gpt2)


def prebuilt(tokenizer: Tokenizer, *, name: str, sha256: str) -> partial:
    """Return a builder for an existing tokenizer. The builder's name and the digest sha256 identify the tokenizer.

    The ids that preparation puts before each document are part of the builder's identity. Texts that earlier versions
    prepared do not have these ids.
    """
    before = document_prefix(tokenizer)
    keywords = {"sha256": sha256} | ({"before": before} if before else {})

    def build(documents: Iterable, **keywords: object) -> Tokenizer:
        return tokenizer

    build.__name__ = name
    return partial(build, **keywords)
