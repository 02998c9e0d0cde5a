"""Prepared tokens on disk: a folder of token files with meta.json, complete or not there; see data/README.md."""

import mmap
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gptmini.data.encoder import Encoder
from gptmini.data.format import BLOCK, OLD_FORMAT, SPLITS
from gptmini.data.meta import read_meta, remedy
from gptmini.data.shards import Ids, Shards
from gptmini.data.stored_file import StoredFile
from gptmini.files import allow_open_files
from gptmini.user_error import UserError

IDS_AT_ONCE = 2**22  # ids that are read at once, so that they stay in the processor's cache


class Source(NamedTuple):
    """Training tokens from which each block of sequences takes a fixed number of windows."""

    name: str  # empty for the only one
    weight: int  # windows of each block
    n_tokens: int


class Excerpt(NamedTuple):
    """What an evaluation reads of a source."""

    ids: Ids  # of a split of the source
    n_tokens: int  # how many of them are read, from the first on
    tokens_per_byte: float  # of the whole split
    # Where documents end, in ids and behind their end-of-text, (n_documents,); None where the folder does not say it.
    document_ends: np.ndarray | None = None


def tokens_per_byte_of(excerpts: Sequence[Excerpt]) -> float:
    """Ids for each byte of text in excerpts together."""
    if len(excerpts) == 1:
        return excerpts[0].tokens_per_byte
    n_bytes = sum(excerpt.n_tokens / excerpt.tokens_per_byte for excerpt in excerpts)
    return sum(excerpt.n_tokens for excerpt in excerpts) / n_bytes


class TokenStore:
    """One prepared folder, checked when it is opened; its tokens stay on disk and are mapped when read.

    The folder holds the tokens of a text; or it names token files that another program wrote; or it names other
    prepared folders, which together are a mixture.
    """

    def __init__(self, folder: Path, *, rebuild: Callable[[dict], Encoder] | None = None) -> None:
        """Open a folder that prepare made. However large it is, only the first and last blocks of its files are read.

        Args:
            folder: the folder.
            rebuild: makes a tokenizer of its to_dict(), as gptmini.tokenizer.from_dict does; None if the property
                tokenizer is not needed.

        Raises UserError: a file is missing, has another size, was changed in those blocks, or is of another format.
        """
        self.folder = Path(folder)
        self.meta = read_meta(self.folder)
        self.tokenizer_state: dict = self.meta["tokenizer"]  # the tokenizer's to_dict()
        self._rebuild = rebuild
        self.fingerprint: str = self.meta["fingerprint"]  # of texts, split, tokenizer and format
        self._is_old = self.meta["format"] == OLD_FORMAT
        self._dtype = np.dtype(self.meta["dtype"]).newbyteorder("<")
        self._maps: dict[Path, mmap.mmap] = {}

        n_linked = sum(len(self.meta[split].get("files", [])) for split in SPLITS)
        allow_open_files(n_linked)  # Python keeps each mapped file open
        self._parts = [self._open_part(source) for source in self.meta.get("sources", [])]
        for split in SPLITS:
            for file in self._files(split):
                file.check(self.folder, is_thorough=False)

    def __getstate__(self) -> dict:
        """What a copy of the store takes over: all but the mapped files, which the copy maps again."""
        return self.__dict__ | {"_maps": {}}

    @cached_property
    def tokenizer(self) -> Encoder:
        """The tokenizer whose ids these are; UserError where the folder was opened without rebuild."""
        if self._rebuild is None:
            raise UserError(
                f"{self.folder} must be opened with rebuild=gptmini.tokenizer.from_dict to have a tokenizer"
            )
        return self._rebuild(self.tokenizer_state)

    @property
    def has_index(self) -> bool:
        """Whether the folder says where its documents end."""
        return all((self.folder / f"{split}.index").is_file() for split in SPLITS)

    @property
    def sources(self) -> list[Source]:
        """The sources of a mixture, in the order of their tokens; for any other folder itself."""
        if not self._parts:
            return [Source(name="", weight=1, n_tokens=self.n_tokens("train"))]
        return [
            Source(source["name"], source["weight"], part.n_tokens("train"))
            for source, part in zip(self.meta["sources"], self._parts, strict=True)
        ]

    def tokens(self, split: str) -> Ids:
        """Ids of a split, (n_tokens,), uint16 or uint32, read-only and memory-mapped."""
        if self._parts:
            return Shards([part.tokens(split) for part in self._parts])
        places = self.meta[split].get("files")
        if places is not None:
            return Shards([self._ids_at(place) for place in places])
        return np.frombuffer(self._map(self._path(split)), dtype=self._dtype)

    def document_ends(self, split: str) -> np.ndarray:
        """Where each document of a split ends, in ids and behind its end-of-text, uint64 (n_documents,).

        Raises UserError: a folder that does not say it, as that of a mixture.
        """
        if not self.has_index:
            raise UserError(f"{self.folder} must have an index of documents, and it has none")
        return np.frombuffer(self._map(self.folder / f"{split}.index"), dtype="<u8")

    def n_tokens(self, split: str) -> int:
        """Ids in a split, end-of-text included."""
        return self.meta[split]["tokens"]

    def n_documents(self, split: str) -> int:
        """Documents in a split."""
        return self.meta[split]["documents"]

    def n_bytes(self, split: str) -> int:
        """UTF-8 bytes of the text of a split."""
        return self.meta[split]["bytes"]

    def tokens_per_byte(self, split: str) -> float:
        """Ids for each byte of text, end-of-text included: what turns nats per token into bits per byte."""
        return self.n_tokens(split) / self.n_bytes(split)

    def excerpts(self, split: str, max_tokens: int | None) -> list[Excerpt]:
        """What an evaluation on at most about max_tokens tokens of a split, or all for None, reads of each source.

        The shares of the sources of a mixture are those of their weights, so the smallest one, by its weight, bounds
        how much is read of the others.
        """
        stores = self._parts or [self]
        sources = self.sources
        n_in_block = sum(source.weight for source in sources)

        # As many tokens a unit of weight as every source has.
        n_a_weight = min(
            store.n_tokens(split) / source.weight
            for source, store in zip(sources, stores, strict=True)
        )
        if max_tokens is not None:
            n_a_weight = min(n_a_weight, max_tokens / n_in_block)
        return [
            Excerpt(
                ids=store.tokens(split),
                n_tokens=max(1, round(n_a_weight * source.weight)),
                tokens_per_byte=store.tokens_per_byte(split),
                document_ends=store.document_ends(split) if store.has_index else None,
            )
            for source, store in zip(sources, stores, strict=True)
        ]

    def check_vocabulary(self, n_vocab: int) -> None:
        """Raise UserError unless every id of both splits is below n_vocab, the number of a tokenizer's ids."""
        for split in SPLITS:
            largest = self.largest_id(split)
            if largest >= n_vocab:
                raise UserError(
                    f"{self._named(split)} must hold ids below {n_vocab}, which is the number of its tokenizer's ids, "
                    f"got {largest}; {remedy(self.folder)}"
                )

    def check_ids(self, split: str, ids: np.ndarray) -> None:
        """Raise UserError for ids beyond the largest of the split: its file was changed since it was prepared."""
        largest = self.meta[split].get("largest_id")
        if largest is not None and ids.size and ids.max() > largest:
            raise UserError(
                f"{self._named(split)} must hold ids up to {largest}, as it was prepared, got {ids.max()}; "
                f"{remedy(self.folder)}"
            )

    def check_size(self, split: str) -> None:
        """Raise UserError if the file of a split was cut short since the folder was opened.

        To be called before tokens are read: where a mapped file ends too soon, reading ends the process with SIGBUS.
        """
        for part in self._parts:
            part.check_size(split)
        for file in self._files(split):
            self._check_mapped(file)

    @property
    def has_checksums(self) -> bool:
        """Whether checksums are known of all files; of token files that another program wrote, only sizes are."""
        if self._parts:
            return all(part.has_checksums for part in self._parts)
        return all("files" not in self.meta[split] for split in SPLITS)

    def verify(self) -> None:
        """Read every file whole; UserError names the first that is not as it was prepared.

        Of token files that another program wrote, only the sizes are known.
        """
        for part in self._parts:
            part.verify()
        for split in SPLITS:
            for file in self._files(split):
                file.check(self.folder, is_thorough=True)

    def _check_mapped(self, file: StoredFile) -> None:
        """Raise UserError if a file is shorter than it was when it was mapped into memory."""
        mapped = self._map(file.path)
        size = mapped.size()  # the system's answer for the mapped file, even if its name is gone
        if size < len(mapped):
            is_ours = file.checksums is not None
            what_to_do = remedy(self.folder) if is_ours else "put the whole file back"
            raise UserError(
                f"{file.path} must stay as it is while it is read, got {size:,} bytes where there were "
                f"{len(mapped):,}; {what_to_do}"
            )

    def _open_part(self, source: dict) -> "TokenStore":
        """Open the prepared folder of a source of a mixture."""
        folder = self.folder.parent / source["folder"]
        if "sources" in read_meta(folder):
            raise UserError(f"{folder} must hold tokens to be part of a mixture, and is a mixture")
        part = TokenStore(folder)
        if part.fingerprint != source["fingerprint"]:
            raise UserError(
                f"{self.folder} names {folder}, which holds other tokens now; {remedy(self.folder)}"
            )
        return part

    def _files(self, split: str) -> list[StoredFile]:
        """The files of a split that belong to this folder."""
        counts = self.meta[split]
        if self._parts:
            return []
        places = counts.get("files")
        if places is not None:
            return [
                StoredFile(Path(place["path"]), place["size"], block=BLOCK, checksums=None)
                for place in places
            ]

        size = counts["tokens"] * self._dtype.itemsize
        if self._is_old:
            whole = [counts["crc32"]]
            return [StoredFile(self._path(split), size, block=size, checksums=whole)]
        return [
            StoredFile(self._path(split), size, block=BLOCK, checksums=counts["crc32"]),
            StoredFile(
                path=self.folder / f"{split}.index",
                size=counts["documents"] * 8,
                block=BLOCK,
                checksums=counts["index_crc32"],
            ),
        ]

    def largest_id(self, split: str) -> int:
        """Largest id of a split: known, or for a folder of format 1 looked for."""
        known = self.meta[split].get("largest_id")
        if known is not None:
            return known
        ids = self.tokens(split)
        firsts = range(0, len(ids), IDS_AT_ONCE)
        return max(int(ids[first : first + IDS_AT_ONCE].max()) for first in firsts)

    def _ids_at(self, place: dict) -> np.ndarray:
        """Ids in a token file that another program wrote."""
        return np.frombuffer(
            self._map(Path(place["path"])),
            dtype=self._dtype,
            count=place["tokens"],
            offset=place["skip"],
        )

    def _map(self, path: Path) -> mmap.mmap:
        """A file, mapped into memory the first time that it is asked for."""
        if path not in self._maps:
            with path.open("rb") as file:
                self._maps[path] = mmap.mmap(file.fileno(), length=0, access=mmap.ACCESS_READ)
        return self._maps[path]

    def _named(self, split: str) -> Path:
        """What an error calls the tokens of a split: their file, or the folder that says where they lie."""
        path = self._path(split)
        return path if path.is_file() else self.folder

    def _path(self, split: str) -> Path:
        return self.folder / f"{split}.bin"
