"""A tokenizer with one id per character."""

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from gptmini.system.errors import UserError
from gptmini.tokenizer.chat.plain import plain_vocabulary
from gptmini.tokenizer.tokenizer import END_OF_TEXT, Document, Tokenizer


class CharTokenizer(Tokenizer):
    """A tokenizer with one id per character. The ids follow the order of the code points.

    If `end_of_text` is true, the id after the last character is end-of-text.
    """

    kind = "char"
    chat_vocabulary = plain_vocabulary

    def __init__(self, characters: str, *, end_of_text: bool) -> None:
        """Build the tokenizer from a string that contains its characters in the order of their ids, each once."""
        is_text = type(characters) is str and characters != ""
        if not is_text or len(set(characters)) != len(characters):
            raise UserError(
                f"characters must be a string without repeated characters, got {characters!r}"
            )
        if type(end_of_text) is not bool:
            raise UserError(f"end_of_text must be true or false, got {end_of_text!r}")

        self.characters = characters
        self.end_of_text: int | None = len(characters) if end_of_text else None
        tokens = [*characters, END_OF_TEXT] if end_of_text else characters
        self.bytes_of = {i: token.encode() for i, token in enumerate(tokens)}
        self.n_vocab = len(self.bytes_of)

        # Map each code point, up to the largest, to its id. An unknown code point maps to n_vocab.
        codes = _code_points(characters)
        self._id_of = np.full(int(codes.max()) + 2, self.n_vocab, dtype=np.uint32)
        self._id_of[codes] = np.arange(len(codes), dtype=np.uint32)

    def encode_batch(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Yield the ids of each text, uint32 (n,). Raises UserError if a character is not in the vocabulary."""
        largest = len(self._id_of) - 1
        for text in texts:
            codes = _code_points(text)
            ids = self._id_of[np.minimum(codes, largest)]
            unknown = np.flatnonzero(ids == self.n_vocab)
            if unknown.size:
                position = int(unknown[0])
                character = text[position]
                raise UserError(
                    f"text must contain only the tokenizer's {len(self.characters)} characters, "
                    f"got {character!r} (U+{ord(character):04X}) at position {position}"
                )
            yield ids

    def to_dict(self) -> dict:
        """Return the state that from_dict reads, in plain JSON types."""
        state: dict = {
            "kind": self.kind,
            "characters": self.characters,
            "end_of_text": self.end_of_text is not None,
        }
        if self.chat_template is not None:
            state["chat_template"] = self.chat_template
        return state


def character(documents: Iterable[Document]) -> CharTokenizer:
    """Return a tokenizer with one id for each character of the text. The held-out text is included.

    The tokenizer has an end-of-text id if the training split or the held-out split has several documents.
    """
    characters: set[str] = set()
    n_documents: Counter[str | None] = Counter()
    for part in documents:
        characters.update(part.text)
        n_documents[part.split] += part.ends
    are_several = any(n > 1 for n in n_documents.values())
    return CharTokenizer("".join(sorted(characters)), end_of_text=are_several)


def _code_points(text: str) -> np.ndarray:
    """Return the code point of each character as a uint32 array of shape (n,). A lone surrogate is one character."""
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")
