"""The files of a split in a prepared folder, written front to back; see data/README.md."""

import zlib
from pathlib import Path

import numpy as np

from gptmini.data.format import BLOCK
from gptmini.files import flush_file, naming


class BlockWriter:
    """A file that is written front to back, with the CRC-32 of each block of BLOCK bytes."""

    def __init__(self, path: Path, place: Path) -> None:
        """Open a new file; an error of writing names place."""
        self._file = path.open("xb")
        self._place = place
        self._checksums: list[int] = []
        self._n_in_block = 0  # bytes of the last block, which its checksum stands for so far

    def close(self) -> None:
        """Close the file."""
        with naming(self._place):
            self._file.close()

    def write(self, data: bytes) -> None:
        """Append data."""
        with naming(self._place):
            self._file.write(data)

        view = memoryview(data)
        while view:
            if self._n_in_block in (0, BLOCK):
                self._checksums.append(0)
                self._n_in_block = 0
            some = view[: BLOCK - self._n_in_block]
            self._checksums[-1] = zlib.crc32(some, self._checksums[-1])
            self._n_in_block += len(some)
            view = view[len(some) :]

    def finish(self) -> list[int]:
        """Flush the file to disk, and return the CRC-32 of its blocks in their order."""
        with naming(self._place):
            flush_file(self._file)
        return self._checksums


class SplitWriter:
    """The ids of a split and the index of its documents."""

    def __init__(self, folder: Path, split: str, place: Path) -> None:
        """Begin the files of a split in a folder; an error of writing names place."""
        self._ids = BlockWriter(folder / f"{split}.bin", place)
        self._index = BlockWriter(folder / f"{split}.index", place)
        self._n_documents = 0
        self._n_bytes = 0
        self._n_tokens = 0
        self._largest = 0

    def close(self) -> None:
        """Close the files."""
        self._ids.close()
        self._index.close()

    def write(self, ids: np.ndarray, n_ids: np.ndarray, ends: np.ndarray, n_bytes: int) -> None:
        """Append parts of documents.

        Args:
            ids: of all parts, one after the other, uint16 or uint32.
            n_ids: number of ids of each part, (n,).
            ends: whether a document ends with each part, bool (n,).
            n_bytes: UTF-8 bytes of the parts.
        """
        if not len(n_ids):
            return
        self._ids.write(ids.tobytes())
        behind = self._n_tokens + np.cumsum(n_ids, dtype=np.uint64)
        self._index.write(behind[ends].astype("<u8").tobytes())

        self._n_documents += int(ends.sum())
        self._n_bytes += n_bytes
        self._n_tokens += len(ids)
        if len(ids):
            self._largest = max(self._largest, int(ids.max()))

    def finish(self) -> dict:
        """Flush the files to disk, and return what meta.json says of them."""
        return {
            "documents": self._n_documents,
            "bytes": self._n_bytes,
            "tokens": self._n_tokens,
            "largest_id": self._largest,
            "crc32": self._ids.finish(),
            "index_crc32": self._index.finish(),
        }
