"""What preparation needs of a tokenizer, which it is given."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np

from gptmini.user_error import UserError


class Encoder(Protocol):
    """Turns text into ids; its methods are called from several threads at once."""

    n_vocab: int  # ids, end-of-text included
    end_of_text: int | None  # id that ends a document; None for a tokenizer without one

    def encode_batch(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Ids of each text, uint32."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids."""
        ...

    def byte_lengths(self) -> np.ndarray:
        """UTF-8 bytes of text that each id stands for, (n_vocab,); needed for token files that others wrote."""
        ...

    def to_dict(self) -> dict:
        """Everything that rebuilds the tokenizer, in plain JSON types."""
        ...


# Makes the tokenizer of a corpus, which it is called with the documents of.
BuildEncoder = Callable[..., Encoder]


def dtype_of(encoder: Encoder) -> np.dtype:
    """Type of the ids in a file: two bytes where they suffice, else four."""
    return np.dtype("<u2" if encoder.n_vocab <= 2**16 else "<u4")


def end_of(encoder: Encoder) -> np.ndarray:
    """The ids that follow each document, uint32: one, or none for a tokenizer without end-of-text."""
    end = [] if encoder.end_of_text is None else [encoder.end_of_text]
    return np.array(end, dtype=np.uint32)


def decoded_whole(encoder: Encoder, ids: np.ndarray, *, n_bytes: int) -> str:
    """Text of ids that encode `n_bytes` bytes of UTF-8; UserError for an encoder that does not give the text back."""
    text = encoder.decode(ids.tolist())
    if len(text.encode(errors="replace")) != n_bytes:
        raise UserError(
            "a text can only be divided where the tokenizer decodes what it has encoded, and this one does not; "
            "give data.val_path"
        )
    return text
