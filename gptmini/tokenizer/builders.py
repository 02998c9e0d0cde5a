"""The settings of the tokenizers, each of which gives the builder that makes the tokenizer of a text.

Prepared tokens are known by the name of the builder and its keywords, so that both stay as they are.
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
from gptmini.tokenizer.tokenizer import Tokenizer, before_documents


@dataclass(frozen=True, kw_only=True, config=STRICT)
class BytePairSettings:
    """Byte pairs that are learned from the training split; the arguments are those of bpe."""

    vocab_size: VocabSize
    train_bytes: PositiveInt | None = None

    def builder(self) -> partial:
        """Return bpe with these settings."""
        return partial(bpe, vocab_size=self.vocab_size, train_bytes=self.train_bytes)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ByteSettings:
    """The 256 bytes."""

    needs_no_text: ClassVar = True  # the tokenizer is the same whatever the text

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

    needs_no_text: ClassVar = True  # the tokenizer is the same whatever the text

    def builder(self) -> partial:
        """Return gpt2, which has no settings."""
        return partial(gpt2)


def ready(tokenizer: Tokenizer, *, name: str, sha256: str) -> partial:
    """A builder of a tokenizer that is there already, under a name and with the digest of the tokenizer.

    Ids before each document are another keyword of the builder, because earlier versions put none there.
    """
    before = before_documents(tokenizer)
    keywords = {"sha256": sha256} | ({"before": before} if before else {})

    def build(documents: Iterable, **keywords: object) -> Tokenizer:
        return tokenizer

    build.__name__ = name
    return partial(build, **keywords)
