"""Prepared tokens on disk: a folder of token files with meta.json, complete or not there; see data/README.md."""

import json
import mmap
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from gptmini.checks import UserError
from gptmini.data.format import (
    BLOCK,
    CHECKSUMS,
    COUNTS,
    FORMAT,
    OLD_FORMAT,
    SPLITS,
    digest_of_json,
)

IDS_AT_ONCE = 2**22  # ids that are read at once, so that they stay in the processor's cache


class TokenStore:
    """One prepared folder, checked when it is opened; its tokens stay on disk and are mapped when read."""

    def __init__(self, folder: Path) -> None:
        """Open a folder that prepare made. However large it is, only the first and last blocks of its files are read.

        Raises UserError: a file is missing, has another size, was changed in those blocks, or is of another format.
        """
        self.folder = Path(folder)
        self.meta = _read_meta(self.folder)
        self.tokenizer: dict = self.meta["tokenizer"]  # its to_dict()
        self.fingerprint: str = self.meta["fingerprint"]  # of texts, split, tokenizer and format
        self.has_index = self.meta["format"] != OLD_FORMAT  # of documents
        self._dtype = np.dtype(self.meta["dtype"]).newbyteorder("<")
        self._maps: dict[str, mmap.mmap] = {}

        for split in SPLITS:
            for name, size, checksums in self._files(split):
                self._check_file(name, size, checksums, is_thorough=False)

    def __getstate__(self) -> dict:
        """What a copy of the store takes over: all but the mapped files, which the copy maps again."""
        return self.__dict__ | {"_maps": {}}

    def tokens(self, split: str) -> np.ndarray:
        """Ids of a split, (n_tokens,), uint16 or uint32, read-only and memory-mapped."""
        return np.frombuffer(self._map(f"{split}.bin"), dtype=self._dtype)

    def document_ends(self, split: str) -> np.ndarray:
        """Where each document of a split ends, in ids and behind its end-of-text, uint64 (n_documents,).

        Raises UserError: a folder of format 1, which does not say it.
        """
        if not self.has_index:
            raise UserError(
                f"{self.folder} has no index of documents, which the version that prepared it did not write; "
                f"{remedy(self.folder)}"
            )
        return np.frombuffer(self._map(f"{split}.index"), dtype="<u8")

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

    def check_vocabulary(self, n_vocab: int) -> None:
        """Raise UserError unless every id of both splits is below n_vocab, the number of a tokenizer's ids."""
        for split in SPLITS:
            largest = self._largest_id(split)
            if largest >= n_vocab:
                raise UserError(
                    f"{self._path(split)} must hold ids below {n_vocab}, which is the number of its tokenizer's ids, "
                    f"got {largest}; {remedy(self.folder)}"
                )

    def check_ids(self, split: str, ids: np.ndarray) -> None:
        """Raise UserError for ids beyond the largest of the split: its file was changed since it was prepared."""
        largest = self.meta[split].get("largest_id")
        if largest is not None and ids.size and ids.max() > largest:
            raise UserError(
                f"{self._path(split)} must hold ids up to {largest}, as it was prepared, got {ids.max()}; "
                f"{remedy(self.folder)}"
            )

    def check_size(self, split: str) -> None:
        """Raise UserError if the file of a split was cut short since the folder was opened.

        To be called before tokens are read: where a mapped file ends too soon, reading ends the process with SIGBUS.
        """
        mapped = self._map(f"{split}.bin")
        size = mapped.size()  # the system's answer for the mapped file, even if its name is gone
        if size < len(mapped):
            raise UserError(
                f"{self._path(split)} must stay as it is while it is read, got {size:,} bytes where there were "
                f"{len(mapped):,}; {remedy(self.folder)}"
            )

    def verify(self) -> None:
        """Read every file whole; UserError names the first that is not as it was prepared."""
        for split in SPLITS:
            for name, size, checksums in self._files(split):
                self._check_file(name, size, checksums, is_thorough=True)

    def _files(self, split: str) -> list[tuple[str, int, list[int]]]:
        """Name, size in bytes and checksums of the blocks of each file of a split."""
        counts = self.meta[split]
        n_bytes = counts["tokens"] * self._dtype.itemsize
        if not self.has_index:
            return [(f"{split}.bin", n_bytes, [counts["crc32"]])]
        return [
            (f"{split}.bin", n_bytes, counts["crc32"]),
            (f"{split}.index", counts["documents"] * 8, counts["index_crc32"]),
        ]

    def _check_file(self, name: str, size: int, checksums: list[int], *, is_thorough: bool) -> None:
        """Raise UserError unless a file has its size, and its first and last block, or all, have their checksums."""
        path = self.folder / name
        block = BLOCK if self.has_index else size
        is_right = path.is_file() and path.stat().st_size == size > 0
        if is_right:
            n_blocks = -(-size // block)
            is_right = len(checksums) == n_blocks
            chosen = range(n_blocks) if is_thorough else sorted({0, n_blocks - 1})
            with path.open("rb") as file:
                for i in chosen:
                    if not is_right:
                        break
                    file.seek(i * block)
                    is_right = _checksum(file, block) == checksums[i]
        if not is_right:
            raise UserError(f"{path} does not hold what meta.json describes; {remedy(self.folder)}")

    def _largest_id(self, split: str) -> int:
        """Largest id of a split: known, or for a folder of format 1 looked for."""
        known = self.meta[split].get("largest_id")
        if known is not None:
            return known
        ids = self.tokens(split)
        firsts = range(0, len(ids), IDS_AT_ONCE)
        return max(int(ids[first : first + IDS_AT_ONCE].max()) for first in firsts)

    def _map(self, name: str) -> mmap.mmap:
        """A file of the folder, mapped into memory the first time that it is asked for."""
        if name not in self._maps:
            with (self.folder / name).open("rb") as file:
                self._maps[name] = mmap.mmap(file.fileno(), length=0, access=mmap.ACCESS_READ)
        return self._maps[name]

    def _path(self, split: str) -> Path:
        return self.folder / f"{split}.bin"


def find_prepared(folder: Path, near: Path) -> Path:
    """The place of a prepared folder that a run names relative to where the run was started.

    Args:
        folder: the folder as the run names it.
        near: a file of the run. The run was started in a folder above the file, or where the user stands now.

    Returns the first place that holds a prepared folder: seen from the working directory, or else from the folders
    above the file, the nearest first. Where there is none, returns folder as it is.
    """
    places = [Path(), *near.absolute().parents]
    for place in places:
        if (place / folder / "meta.json").is_file():
            return place / folder
    return folder


def remedy(folder: Path) -> str:
    """What to do about a prepared folder that cannot be used."""
    return f"delete {folder} to prepare it again"


def _checksum(file: BinaryIO, size: int) -> int:
    """CRC-32 of the next `size` bytes of a file, or of as many as there are."""
    checksum = 0
    while size > 0:
        data = file.read(min(size, BLOCK))
        if not data:
            break
        checksum = zlib.crc32(data, checksum)
        size -= len(data)
    return checksum


def _read_meta(folder: Path) -> dict:
    """What meta.json says; UserError unless it is as this version, or the one of format 1, wrote it."""
    path = folder / "meta.json"
    if not path.is_file():
        raise UserError(
            f"{folder} is not a prepared folder: it has no meta.json; "
            "run gptmini prepare, or name another"
        )

    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        digest = meta.pop("digest")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise UserError(f"{path} is not the JSON that was written; {remedy(folder)}") from None

    if meta.get("format") not in (OLD_FORMAT, FORMAT):
        raise UserError(
            f"{path} has format {meta.get('format')!r}, this version reads {OLD_FORMAT} and {FORMAT}; {remedy(folder)}"
        )
    if digest_of_json(meta) != digest:
        raise UserError(f"{path} was edited: its digest does not match; {remedy(folder)}")
    if not _is_complete(meta):
        raise UserError(f"{path} lacks what this version wrote; {remedy(folder)}")
    return meta


def _is_complete(meta: dict) -> bool:
    """Whether meta.json holds every field that is read, each of its type."""
    is_old = meta["format"] == OLD_FORMAT
    names = (*COUNTS[:3], "crc32") if is_old else COUNTS
    lists = () if is_old else CHECKSUMS
    try:
        counts = [meta[split][name] for split in SPLITS for name in names]
        for split in SPLITS:
            for name in lists:
                checksums = meta[split][name]
                if type(checksums) is not list:
                    return False
                counts += checksums
        has_counts = all(type(count) is int and 0 <= count < 2**63 for count in counts)
        has_text = all(meta[split]["bytes"] for split in SPLITS)
        has_fingerprint = type(meta["fingerprint"]) is str
        files = meta["source"].get("files", [""])  # of a corpus that is not made of files
        has_files = type(files) is list and files != []
        has_source = has_files and type(meta["source"]["corpus"]) is str
        has_builder = type(meta["builder"]["name"]) is str
        has_dtype = meta["dtype"] in ("uint16", "uint32")
        has_tokenizer = isinstance(meta["tokenizer"], dict)
    except (KeyError, TypeError, AttributeError):
        return False
    has_recipe = has_source and has_builder and has_fingerprint
    return has_counts and has_text and has_recipe and has_dtype and has_tokenizer
