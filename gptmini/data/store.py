"""Prepared tokens on disk: a folder of token files with meta.json, complete or not there; see data/README.md."""

import mmap
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gptmini.data.ids import Ids, Shards, without_marks
from gptmini.data.meta import SPLITS, read_meta, remedy
from gptmini.data.stored_file import StoredFile
from gptmini.files import allow_open_files
from gptmini.tokenizer import Tokenizer, from_dict
from gptmini.user_error import UserError


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

    def __init__(self, folder: str | Path) -> None:
        """Open a folder that prepare made. However large it is, only the first and last blocks of its files are read.

        Raises UserError: a file is missing, has another size, was changed in those blocks, or is of another format.
        """
        self.folder = Path(folder)
        self.meta = read_meta(self.folder)
        self.tokenizer_state: dict = self.meta["tokenizer"]  # the tokenizer's to_dict()
        self.fingerprint: str = self.meta["fingerprint"]  # of texts, split, tokenizer and format
        # Whether the tokens lie in this folder, with an index that says where documents end.
        self.has_index = "sources" not in self.meta and "files" not in self.meta["train"]
        self._dtype = np.dtype(self.meta["dtype"]).newbyteorder("<")
        self._maps: dict[Path, mmap.mmap] = {}

        n_linked = sum(len(self.meta[split].get("files", [])) for split in SPLITS)
        allow_open_files(n_linked)  # Python keeps each mapped file open
        self._parts = [self._open_part(source) for source in self.meta.get("sources", [])]
        for split in SPLITS:
            for file in self._files(split):
                file.check(self.folder, is_thorough=False)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer whose ids these are."""
        return from_dict(self.tokenizer_state)

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
        """Ids of a split, (n_tokens,), uint16 or uint32, read-only and memory-mapped.

        Where the loss counts answers alone they are int32, and without_marks gives the ids.
        """
        if self._parts:
            return Shards([part.tokens(split) for part in self._parts])
        if self.has_index:
            return np.frombuffer(self._map(self._path(split)), dtype=self._dtype)
        return Shards([self._ids_at(place) for place in self.meta[split]["files"]])

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

    def largest_id(self, split: str) -> int:
        """Largest id of a split."""
        return self.meta[split]["largest_id"]

    def bytes_per_token(self, split: str) -> float:
        """Bytes of text for each id of a split, end-of-text included, whether or not the loss counts it."""
        return self.n_bytes(split) / self.n_tokens(split)

    def tokens_per_byte(self, split: str) -> float:
        """Ids for each byte of text, end-of-text included: what turns nats per token into bits per byte.

        Where the loss counts answers alone, both are those of answers.
        """
        counts = self.meta[split]
        return counts.get("counted", counts["tokens"]) / counts.get(
            "counted_bytes", counts["bytes"]
        )

    @property
    def counted_share(self) -> float:
        """Share of training tokens that the loss counts, in a mixture by its weights; 1 but for answers alone."""
        counts = self.meta["train"]
        if not self._parts:
            return counts.get("counted", counts["tokens"]) / counts["tokens"]
        weights = [source.weight for source in self.sources]
        shares = [part.counted_share for part in self._parts]
        return float(np.average(shares, weights=weights))

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

    def check_ids(self, split: str, ids: np.ndarray) -> None:
        """Raise UserError for ids beyond the largest of the split: its file was changed since it was prepared."""
        largest = self.largest_id(split)
        ids = without_marks(ids)
        if ids.size and ids.max() > largest:
            place = self._path(split) if self.has_index else self.folder
            raise UserError(
                f"{place} must hold ids up to {largest}, as it was prepared, got {ids.max()}; "
                f"{remedy(self.folder)}"
            )

    def check_size(self, split: str) -> None:
        """Raise UserError if the file of a split was cut short since the folder was opened.

        To be called before tokens are read: where a mapped file ends too soon, reading ends the process with SIGBUS.
        """
        for part in self._parts:
            part.check_size(split)
        for file in self._files(split):
            # The system's answer for the mapped file, even if its name is gone.
            size = self._map(file.path).size()
            if size < file.size:
                what_to_do = remedy(self.folder) if self.has_index else "put the whole file back"
                raise UserError(
                    f"{file.path} must stay as it is while it is read, got {size:,} bytes where there were "
                    f"{file.size:,}; {what_to_do}"
                )

    @property
    def has_checksums(self) -> bool:
        """Whether checksums are known of all files; of token files that another program wrote, only sizes are."""
        return all(part.has_index for part in self._parts or [self])

    def verify(self) -> None:
        """Read every file whole; UserError names the first that is not as it was prepared.

        Of token files that another program wrote, only the sizes are known.
        """
        for part in self._parts:
            part.verify()
        for split in SPLITS:
            for file in self._files(split):
                file.check(self.folder, is_thorough=True)

    def _open_part(self, source: dict) -> "TokenStore":
        """Open the prepared folder of a source of a mixture."""
        folder = self.folder.parent / source["folder"]
        part = TokenStore(folder)
        if part.fingerprint != source["fingerprint"]:
            raise UserError(
                f"{self.folder} names {folder}, which holds other tokens now; {remedy(self.folder)}"
            )
        return part

    def _files(self, split: str) -> "list[StoredFile]":
        """The files of a split that belong to this folder."""
        counts = self.meta[split]
        if not self.has_index:
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

    def _path(self, split: str) -> Path:
        return self.folder / f"{split}.bin"
