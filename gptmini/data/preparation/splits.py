"""Which documents are held out: by a hash of each, or by position where hashes do not come near the wanted share."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from gptmini.data.corpus import Document

# A share of held-out text that differs from the wanted share by more than this part of it is not near.
TOLERANCE = 0.5


def hash_byte(text: bytes) -> int:
    """First byte of the SHA-256 digest of a text in UTF-8: the number that decides where a document goes."""
    return hashlib.sha256(text).digest()[0]


def threshold_of(val_fraction: float) -> int:
    """Number of hash bytes, of 256, whose documents are held out."""
    return round(256 * val_fraction)


def split_of(text: str, val_fraction: float) -> str:
    """Split of a document: val if its hash byte is below threshold_of(val_fraction), else train.

    So a document keeps its split on every machine, whatever other documents come and go.
    """
    return "val" if hash_byte(text.encode()) < threshold_of(val_fraction) else "train"


@dataclass
class Census:
    """Counts of documents that have no split yet, by which the rule for their splits is chosen."""

    n_documents: int = 0
    n_characters: int = 0
    # UTF-8 bytes of the documents with each hash byte, int64 (256,)
    n_bytes: np.ndarray = field(default_factory=lambda: np.zeros(256, dtype=np.int64))
    _begins: bool = True  # whether the next part that is counted begins a document
    _hash_byte: int = 0  # of the document that is counted

    def count(self, document: Document) -> None:
        """Count a document or a part of one, in the order of the corpus; one with a split of its own does not count."""
        if document.split is not None:
            return
        text = document.text.encode(errors="replace")
        if self._begins:
            self._hash_byte = hash_byte(text)
        self._begins = document.ends
        self.n_documents += document.ends
        self.n_characters += len(document.text)
        self.n_bytes[self._hash_byte] += len(text)

    def add(
        self,
        hash_bytes: np.ndarray,
        n_bytes: np.ndarray,
        n_characters: np.ndarray,
        ends: np.ndarray,
    ) -> None:
        """Count parts of documents, each array (n,): hash byte, UTF-8 bytes, characters, whether the document ends."""
        self.n_documents += int(ends.sum())
        self.n_characters += int(n_characters.sum())
        sums = np.bincount(hash_bytes, weights=n_bytes, minlength=256)
        self.n_bytes += sums.astype(np.int64)

    def rule(self, val_fraction: float) -> "Rule":
        """Choose the rule for the splits.

        A single document is divided by position. Of several, the hash of each decides, unless the share of bytes that
        it holds out is off by more than half.
        """
        boundary = int(self.n_characters * (1 - val_fraction))
        if self.n_documents <= 1:
            return Rule(threshold=0, boundary=boundary, note=None)

        threshold = threshold_of(val_fraction)
        n_held_out = int(self.n_bytes[:threshold].sum())
        n_all = int(self.n_bytes.sum())
        share = n_held_out / max(n_all, 1)
        is_near = abs(share - val_fraction) <= TOLERANCE * val_fraction
        if is_near and 0 < n_held_out < n_all:
            return Rule(threshold=threshold, boundary=None, note=None)
        return Rule(
            threshold=0,
            boundary=boundary,
            note=f"the last {100 * val_fraction:.3g}% of the text is held out, which cuts a document in two, because "
            f"whole documents, chosen by hash, would be {100 * share:.2g}%",
        )


@dataclass(frozen=True)
class Rule:
    """Where documents without a split go."""

    threshold: int  # documents with a hash byte below it are held out
    # Characters of the text that are trained on, the rest being held out; None where hashes decide.
    boundary: int | None
    note: str | None  # what a user should know of the choice

    def apply(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Give each document its split; a document across the boundary becomes two."""
        # Characters before the document, without those of documents with a split of their own.
        position = 0
        begins = True  # whether the next part begins a document
        hash_of_document = 0
        for document in documents:
            if document.split is not None:
                yield document
                continue

            if begins:
                hash_of_document = hash_byte(document.text.encode(errors="replace"))
            begins = document.ends
            if self.boundary is None:
                split = "val" if hash_of_document < self.threshold else "train"
                yield Document(split, document.text, document.ends)
                continue

            n_train = min(max(self.boundary - position, 0), len(document.text))
            position += len(document.text)
            if n_train:
                ends = document.ends or position >= self.boundary
                yield Document("train", document.text[:n_train], ends)
            if n_train < len(document.text):
                yield Document("val", document.text[n_train:], document.ends)
