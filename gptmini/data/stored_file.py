"""The files whose content meta.json describes, checked by their sizes and checksums."""

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gptmini.data.meta import remedy
from gptmini.user_error import UserError

# Bytes that a checksum stands for. Small, so that opening a folder, which checks the first and the last of each file,
# takes milliseconds; the checksums of ten billion ids are then 200 kB of meta.json.
BLOCK = 2**20


class StoredFile(NamedTuple):
    """A file whose content meta.json describes."""

    path: Path
    size: int  # bytes
    checksums: list[int] | None  # CRC-32 of each block; None for a file that another program wrote

    def check(self, folder: Path, *, is_thorough: bool) -> None:
        """Raise UserError unless the file has its size, and its first and last block, or all, have their checksums.

        folder is the prepared folder that the file belongs to.
        """
        is_right = self.path.is_file() and self.path.stat().st_size == self.size > 0
        if self.checksums is None:
            if not is_right:
                raise UserError(
                    f"{self.path} must have the {self.size:,} bytes that it had when its tokens were counted, and it "
                    "is missing or has changed; put it back, or run gptmini prepare data=tokens with the data.path= of "
                    "its new place first"
                )
            return

        if is_right:
            last = len(self.checksums) - 1
            chosen = range(last + 1) if is_thorough else sorted({0, last})
            is_right = block_checksums(self.path, chosen) == [self.checksums[i] for i in chosen]
        if not is_right:
            raise UserError(f"{self.path} does not hold what meta.json describes; {remedy(folder)}")


def block_checksums(path: Path, numbers: Iterable[int] | None = None) -> list[int]:
    """CRC-32 of the blocks of a file that have these numbers, from 0, or of all; the last block may be shorter."""
    checksums = []
    if numbers is None:
        numbers = range(-(-path.stat().st_size // BLOCK))
    with path.open("rb") as file:
        for i in numbers:
            file.seek(i * BLOCK)
            checksums.append(zlib.crc32(file.read(BLOCK)))
    return checksums
