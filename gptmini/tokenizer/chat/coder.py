"""What the encoder of chats needs from a tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Coder(Protocol):
    """The methods of tokenizers.Tokenizer that ChatEncoder calls."""

    def encode(self, text: str, /, *, add_special_tokens: bool) -> Any:
        """Return an object with the ids of a text, and with the offsets (start, end) of each id in characters."""
        ...

    def token_to_id(self, token: str, /) -> int | None:
        """Return the id of a token. Return None if the vocabulary does not have the token."""
        ...


class ChatVocabulary(NamedTuple):
    """The special tokens of a tokenizer, and two ways to encode their strings."""

    names: Mapping[str, str]  # tokens that a template may use, by names such as bos_token
    special: Sequence[str]  # special tokens that were added to the vocabulary
    words: Sequence[str]  # ordinary tokens that are special because one of the names refers to them
    coder: Coder  # encodes the string of a special token as the id of this token
    plain_coder: Coder  # encodes the string of a special token as ordinary text
