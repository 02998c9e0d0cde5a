"""Check the sizes and the checksums of the files that meta.json describes."""

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gptmini.data.prepared.meta import remedy
from gptmini.system.errors import UserError

# Bytes per checksum. Opening a folder reads the first and last block of each file, so small blocks make it fast. The
# checksums of ten billion ids still take only 200 kB in meta.json.
BLOCK = 2**20


class StoredFile(NamedTuple):
    """A file that meta.json describes."""

    path: Path
    size: int  # bytes
    checksums: list[int] | None  # CRC-32 of each block; None for a file of another program

    def check(self, folder: Path, *, is_thorough: bool) -> None:
        """Raise UserError unless the size and the checksums of the file match.

        Check only the first and the last block unless is_thorough is True. `folder` is the prepared folder that
        describes the file.
        """
        is_right = self.path.is_file() and self.path.stat().st_size == self.size > 0
        if self.checksums is None and not is_right:
            raise UserError(
                f"{self.path} is missing or no longer has {self.size:,} bytes; restore the file, or run "
                "gptmini prepare data=tokens data.path=NEW_PATH"
            )

        if self.checksums is not None and is_right:
            last = len(self.checksums) - 1
            chosen = range(last + 1) if is_thorough else sorted({0, last})
            is_right = block_checksums(self.path, chosen) == [self.checksums[i] for i in chosen]
        if not is_right:
            raise UserError(f"{self.path} does not match meta.json; {remedy(folder)}")


def block_checksums(path: Path, numbers: Iterable[int] | None = None) -> list[int]:
    """Return the CRC-32 checksum of each block with one of the given numbers, counted from 0.

    With None, return the checksums of all blocks. The last block of the file may be shorter.
    """
    checksums = []
    if numbers is None:
        numbers = range(-(-path.stat().st_size // BLOCK))
    with path.open("rb") as file:
        for i in numbers:
            file.seek(i * BLOCK)
            checksums.append(zlib.crc32(file.read(BLOCK)))
    return checksums
