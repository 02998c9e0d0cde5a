"""Prepared tokens on disk. The folder contains token files and meta.json. The folder is complete or does not exist.

data/README.md describes the files.
"""

import mmap
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gptmini.data.prepared.checksums import StoredFile
from gptmini.data.prepared.ids import Ids, Shards, cut_windows, without_marks
from gptmini.data.prepared.meta import SPLITS, read_meta, remedy
from gptmini.system.errors import UserError
from gptmini.system.files import allow_open_files
from gptmini.tokenizer import Tokenizer, from_dict


class TokenSource(NamedTuple):
    """Training tokens that contribute a fixed number of windows to each block of sequences."""

    name: str  # empty if it is the only source
    weight: int  # windows per block
    n_tokens: int


class Excerpt(NamedTuple):
    """The part of a source that an evaluation reads."""

    ids: Ids  # the ids of a split of the source
    n_tokens: int  # number of ids that are read, starting with the first id
    tokens_per_byte: float  # ids per byte of the entire split
    # The position of the id after each document and its end-of-text, (n_documents,). None if the folder has no index.
    document_ends: np.ndarray | None = None


def tokens_per_byte_of(excerpts: Sequence[Excerpt]) -> float:
    """Return the number of ids per byte of text in all excerpts."""
    if len(excerpts) == 1:
        return excerpts[0].tokens_per_byte
    n_bytes = sum(excerpt.n_tokens / excerpt.tokens_per_byte for excerpt in excerpts)
    return sum(excerpt.n_tokens for excerpt in excerpts) / n_bytes


class TokenStore:
    """A prepared folder. The tokens stay on disk and are memory-mapped.

    The folder contains tokens, or refers to token files of another program, or to the prepared folders of a mixture.
    """

    def __init__(self, folder: str | Path) -> None:
        """Open a folder that prepare wrote. Read only the first and last block of each file.

        Raises UserError if a file is missing, has a different size or format, or has changed bytes in these blocks.
        """
        self.folder = Path(folder)
        self.meta = read_meta(self.folder)
        # The result of the method to_dict() of the tokenizer.
        self.tokenizer_state: dict = self.meta["tokenizer"]
        # The fingerprint of the texts, the split, the tokenizer and the format.
        self.fingerprint: str = self.meta["fingerprint"]
        # Whether this folder contains the tokens and an index of the documents.
        self.has_index = "sources" not in self.meta and "files" not in self.meta["train"]
        self._dtype = np.dtype(self.meta["dtype"]).newbyteorder("<")
        self._maps: dict[Path, mmap.mmap] = {}

        n_linked = sum(len(self.meta[split].get("files", [])) for split in SPLITS)
        allow_open_files(n_linked)  # Python keeps each mapped file open
        self._stores = [self._open_source(source) for source in self.meta.get("sources", [])]
        for split in SPLITS:
            for file in self._files(split):
                file.check(self.folder, is_thorough=False)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the ids."""
        return from_dict(self.tokenizer_state)

    @property
    def sources(self) -> list[TokenSource]:
        """The sources of a mixture, in the order of their tokens. Without a mixture, the folder is the only source."""
        if not self._stores:
            return [TokenSource(name="", weight=1, n_tokens=self.n_tokens("train"))]
        return [
            TokenSource(source["name"], source["weight"], store.n_tokens("train"))
            for source, store in zip(self.meta["sources"], self._stores, strict=True)
        ]

    @property
    def chats(self) -> "list[TokenStore]":
        """The folders with chats: this folder, or sources of a mixture."""
        return [store for store in self._stores or [self] if store.meta["source"].get("template")]

    def tokens(self, split: str) -> Ids:
        """Return the ids of a split, uint16 or uint32 (n_tokens,). The array is read-only and memory-mapped.

        If the loss counts only answers, the ids are int32 with marks. The function without_marks removes the marks.
        """
        if self._stores:
            return Shards([store.tokens(split) for store in self._stores])
        if self.has_index:
            return np.frombuffer(self._map(self._path(split)), dtype=self._dtype)
        return Shards([self._ids_at(place) for place in self.meta[split]["files"]])

    @cached_property
    def _training_tokens(self) -> Ids:
        return self.tokens("train")

    def training_windows(self, starts: np.ndarray, context_length: int) -> np.ndarray:
        """Return the training windows with their last targets, (B, T + 1), that begin at the positions `starts` (B,).

        Raises UserError if a token file has changed.
        """
        self.check_size("train")
        windows = cut_windows(self._training_tokens, starts, context_length)
        self.check_ids("train", windows)
        return windows

    def document_ends(self, split: str) -> np.ndarray:
        """Return the position of the id after each document and its end-of-text, uint64 (n_documents,).

        The folder must have an index.
        """
        return np.frombuffer(self._map(self.folder / f"{split}.index"), dtype="<u8")

    def n_tokens(self, split: str) -> int:
        """Return the number of ids in a split, including end-of-text."""
        return self.meta[split]["tokens"]

    @property
    def longest_context(self) -> int:
        """Longest context T for which the text suffices: each training source needs 2 T tokens, validation T + 1."""
        return min(self.n_tokens("val") - 1, *(one.n_tokens // 2 for one in self.sources))

    def n_documents(self, split: str) -> int:
        """Return the number of documents in a split."""
        return self.meta[split]["documents"]

    def n_bytes(self, split: str) -> int:
        """Return the number of UTF-8 bytes in the text of a split."""
        return self.meta[split]["bytes"]

    def bytes_per_token(self, split: str) -> float:
        """Return the number of bytes of text per id in a split, including ids that the loss does not count."""
        return self.n_bytes(split) / self.n_tokens(split)

    def tokens_per_byte(self, split: str) -> float:
        """Return the number of ids per byte of text in a split, to convert nats per token into bits per byte.

        End-of-text is included. If the loss counts only answers, only the ids and bytes of answers are counted.
        """
        counts = self.meta[split]
        n_bytes = counts.get("counted_bytes", counts["bytes"])
        return counts.get("counted", counts["tokens"]) / n_bytes

    @property
    def counted_share(self) -> float:
        """Fraction of the training tokens that the loss counts. It is 1 unless loss_on is "answers".

        In a mixture, the fraction is the weighted average over the sources.
        """
        counts = self.meta["train"]
        if not self._stores:
            return counts.get("counted", counts["tokens"]) / counts["tokens"]
        weights = [source.weight for source in self.sources]
        shares = [store.counted_share for store in self._stores]
        return float(np.average(shares, weights=weights))

    def excerpts(self, split: str, max_tokens: int | None) -> list[Excerpt]:
        """Return the part of each source that an evaluation reads. All parts together have about max_tokens tokens.

        With max_tokens=None, the number of tokens is not limited. The sources of a mixture contribute in proportion
        to their weights. Therefore the source with the fewest tokens per weight limits the tokens of all sources.
        """
        stores = self._stores or [self]
        weights = [source.weight for source in self.sources]
        # The number of tokens per unit of weight that every source has.
        n_per_weight = min(
            store.n_tokens(split) / weight for store, weight in zip(stores, weights, strict=True)
        )
        if max_tokens is not None:
            n_per_weight = min(n_per_weight, max_tokens / sum(weights))
        return [
            Excerpt(
                ids=store.tokens(split),
                n_tokens=max(1, round(n_per_weight * weight)),
                tokens_per_byte=store.tokens_per_byte(split),
                document_ends=store.document_ends(split) if store.has_index else None,
            )
            for store, weight in zip(stores, weights, strict=True)
        ]

    def check_ids(self, split: str, ids: np.ndarray) -> None:
        """Raise UserError if an id is above the largest id of the split, because the file has changed."""
        largest = self.meta[split]["largest_id"]
        ids = without_marks(ids)
        if ids.size and ids.max() > largest:
            place = self._path(split) if self.has_index else self.folder
            raise UserError(
                f"{place} has changed: ids must be at most {largest}, got {ids.max()}; "
                f"{remedy(self.folder)}"
            )

    def check_size(self, split: str) -> None:
        """Raise UserError if a file of a split was truncated since the folder was opened.

        Call this before reading tokens: reading beyond the end of a mapped file kills the process with SIGBUS.
        """
        for store in self._stores:
            store.check_size(split)
        for file in self._files(split):
            # This is the size of the mapped file, even if the file was deleted.
            size = self._map(file.path).size()
            if size < file.size:
                what_to_do = remedy(self.folder) if self.has_index else "restore the file"
                raise UserError(
                    f"{file.path} was truncated while it was read: {size:,} of {file.size:,} bytes are left; "
                    f"{what_to_do}"
                )

    @property
    def has_checksums(self) -> bool:
        """Whether all files have checksums. For token files of another program, only sizes are stored."""
        return all(store.has_index for store in self._stores or [self])

    def verify(self) -> None:
        """Read all files completely. Raise UserError for the first file that has changed since it was prepared.

        For token files of another program, only the sizes are checked.
        """
        for store in self._stores:
            store.verify()
        for split in SPLITS:
            for file in self._files(split):
                file.check(self.folder, is_thorough=True)

    def _open_source(self, source: dict) -> "TokenStore":
        folder = self.folder.parent / source["folder"]
        store = TokenStore(folder)
        if store.fingerprint != source["fingerprint"]:
            raise UserError(
                f"{folder} has changed since the mixture {self.folder} was prepared; {remedy(self.folder)}"
            )
        return store

    def _files(self, split: str) -> "list[StoredFile]":
        counts = self.meta[split]
        if not self.has_index:  # a mixture, or token files of another program
            places = counts.get("files", [])
            return [StoredFile(Path(place["path"]), place["size"], None) for place in places]

        return [
            StoredFile(
                path=self._path(split),
                size=counts["tokens"] * self._dtype.itemsize,
                checksums=counts["crc32"],
            ),
            StoredFile(
                path=self.folder / f"{split}.index",
                size=counts["documents"] * 8,
                checksums=counts["index_crc32"],
            ),
        ]

    def _ids_at(self, place: dict) -> np.ndarray:
        return np.frombuffer(
            self._map(Path(place["path"])),
            dtype=self._dtype,
            count=place["tokens"],
            offset=place["skip"],
        )

    def _map(self, path: Path) -> mmap.mmap:
        if path not in self._maps:
            with path.open("rb") as file:
                self._maps[path] = mmap.mmap(file.fileno(), length=0, access=mmap.ACCESS_READ)
        return self._maps[path]

    def _path(self, split: str) -> Path:
        return self.folder / f"{split}.bin"
