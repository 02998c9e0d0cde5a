"""Where the ids lie in token files that other programs wrote: nanoGPT, llm.c and modded-nanogpt.

A file of nanoGPT holds ids of two bytes and nothing else. A file of llm.c, and of modded-nanogpt after it, begins with
256 integers of four bytes: a magic number, a version that tells the size of an id, the number of ids, and zeros.
"""

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gptmini.user_error import UserError

HEADER = 1024  # bytes
# What a header begins with: magic number, version and number of ids.
BEGINNING = struct.Struct("<3i")
# Type of the ids by magic number and version: those of GPT-2 and, with four bytes, those of Llama 3.
TYPES = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
RAW = np.dtype("<u2")  # of a file without a header
SNIFFED = 2**12  # bytes at a file's beginning that tell what it probably holds
SEVERAL = 16  # ids of two bytes, of which every second is zero, that look like ids of more bytes
TEXT = frozenset(b"\t\n\r" + bytes(range(0x20, 0x7F)))  # bytes of plain text


class TokenFile(NamedTuple):
    """Ids in a file."""

    path: Path
    skip: int  # bytes before the first id
    tokens: int  # number of ids
    dtype: np.dtype

    def ids(self) -> np.ndarray:
        """The ids, (tokens,), read-only and memory-mapped."""
        return np.memmap(self.path, self.dtype, mode="r", offset=self.skip, shape=(self.tokens,))

    def parted(self, n: int) -> "tuple[TokenFile, TokenFile]":
        """The first n ids, and the others."""
        behind = self.skip + n * self.dtype.itemsize
        return self._replace(tokens=n), self._replace(skip=behind, tokens=self.tokens - n)


def read_header(path: Path) -> TokenFile:
    """Where the ids of a token file lie; UserError for a file that is no token file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        beginning = file.read(SNIFFED)
    if len(beginning) >= BEGINNING.size:
        magic, version, n_tokens = BEGINNING.unpack_from(beginning)
        dtype = TYPES.get((magic, version))
        if dtype is not None:
            if n_tokens < 1 or size != HEADER + n_tokens * dtype.itemsize:
                raise UserError(
                    f"{path} must hold the {n_tokens:,} ids that its header tells, got {size:,} bytes; "
                    "is it whole?"
                )
            return TokenFile(path, HEADER, n_tokens, dtype)
        if magic in {known for known, _ in TYPES}:
            raise UserError(f"{path} must be of a version that is known, got {version}")

    _check_raw(path, size, beginning)
    return TokenFile(path, 0, size // RAW.itemsize, RAW)


def _check_raw(path: Path, size: int, beginning: bytes) -> None:
    """Raise UserError for a file without a header that is probably something else than GPT-2's ids in two bytes."""
    if beginning and all(byte in TEXT for byte in beginning):
        raise UserError(
            f"{path} must hold ids of tokens, and looks like text; use data=text for it"
        )
    if beginning.startswith(b"\x93NUMPY"):
        raise UserError(f"{path} must hold ids alone, and is a NumPy file; write it with tofile()")
    if size == 0 or size % RAW.itemsize:
        raise UserError(f"{path} must hold ids of {RAW.itemsize} bytes, got {size:,} bytes")

    words = np.frombuffer(beginning[: len(beginning) // 4 * 4], dtype="<u2")
    if len(words) >= SEVERAL and not words[1::2].any():
        raise UserError(
            f"{path} must hold ids of {RAW.itemsize} bytes, and looks like ids of four or eight bytes; convert it"
        )
    if path.with_name("meta.pkl").exists():
        raise UserError(
            f"{path} lies beside a meta.pkl, by which nanoGPT marks ids of its own characters; "
            "train on the text with tokenizer=char"
        )
