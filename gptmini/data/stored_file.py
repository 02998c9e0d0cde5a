"""A file of a prepared folder, and the check that it is as it was prepared."""

import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

from gptmini.data.format import BLOCK
from gptmini.data.meta import remedy
from gptmini.user_error import UserError


class StoredFile(NamedTuple):
    """A file whose content meta.json describes."""

    path: Path
    size: int  # bytes
    block: int  # bytes that each checksum is of; the last block may be shorter
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

        if not is_right or not self._has_checksums(self.checksums, is_thorough=is_thorough):
            raise UserError(f"{self.path} does not hold what meta.json describes; {remedy(folder)}")

    def _has_checksums(self, checksums: list[int], *, is_thorough: bool) -> bool:
        """Whether the first and last block, or all blocks, have their checksums."""
        n_blocks = -(-self.size // self.block)
        if len(checksums) != n_blocks:
            return False

        chosen = range(n_blocks) if is_thorough else sorted({0, n_blocks - 1})
        with self.path.open("rb") as file:
            for i in chosen:
                file.seek(i * self.block)
                if _checksum(file, self.block) != checksums[i]:
                    return False
        return True


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
