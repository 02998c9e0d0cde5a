"""Train on token files of nanoGPT, llm.c and modded-nanogpt.

A file of nanoGPT contains only ids of two bytes. A file of the others starts with a header of 256 integers of four
bytes: a magic number, a version, the number of ids, and zeros. The version determines the size of an id.
"""

import glob
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import validate_call

from gptmini.console.progress import Progress, Watcher
from gptmini.data.corpus import DigestOf, HeldOut
from gptmini.data.prepared.chat_tokens import nothing_in
from gptmini.data.prepared.meta import SPLITS
from gptmini.data.prepared.preparation import LinkedCorpus, Preparation
from gptmini.data.reading.paths import STANDARD_INPUT, Paths, find_files, hold_out
from gptmini.settings import STRICT, FileName
from gptmini.system.errors import UserError
from gptmini.tokenizer import Document, Tokenizer

HEADER = 1024  # bytes
# A header starts with the magic number, the version and the number of ids.
HEADER_START = struct.Struct("<3i")
# The dtype of the ids for each magic number and version. Ids of GPT-2 have two bytes. Ids of Llama 3 have four bytes.
TYPES = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
RAW = np.dtype("<u2")  # dtype of a file without a header
SNIFFED = 2**12  # bytes at the start of a file that show what the file probably contains
MANY_ZEROS = 16  # if every second one of at least this many ids is zero, the ids probably have more than two bytes
TEXT = frozenset(b"\t\n\r" + bytes(range(0x20, 0x7F)))  # bytes of plain text

IDS_AT_ONCE = 2**22  # ids that are counted at a time
VAL = re.compile(r"(^|[_-])val(idation)?([_-]|$)")  # matches names of held-out files


class TokenFile(NamedTuple):
    """A range of ids in a file."""

    path: Path
    skip: int  # bytes before the first id
    tokens: int  # number of ids
    dtype: np.dtype

    def parted(self, n: int) -> "tuple[TokenFile, TokenFile]":
        """Split the range into its first n ids and the remaining ids."""
        after = self.skip + n * self.dtype.itemsize
        return self._replace(tokens=n), self._replace(skip=after, tokens=self.tokens - n)


class TokenFiles(LinkedCorpus):
    """Token files as the data of a run. The files are read to count the ids, and never copied."""

    @validate_call(config=STRICT)
    def __init__(
        self,
        path: Paths,
        val_path: Paths | None,
        val_fraction: HeldOut,
        name: FileName = "tokens",
    ) -> None:
        """Find the files. configs/data/tokens.yaml describes the arguments.

        A file that is in path and in val_path is only held out. The prepared folder's name starts with `name`.

        Raises pydantic.ValidationError for an invalid value. Raises UserError if a file is not a token file.
        """
        self.name = name
        self._fraction_held_out = val_fraction
        self._notes: list[str] = []
        self.files = _find_token_files("data.path", path)

        if val_path is not None:
            self.val_files = _find_token_files("data.val_path", val_path)
            training_paths, self._notes = hold_out(
                [file.path for file in self.files], [file.path for file in self.val_files]
            )
            self.files = [file for file in self.files if file.path in training_paths]
        else:
            # Examples of these names are val.bin of nanoGPT, and fineweb_val_000000.bin.
            named = [file for file in self.files if VAL.search(file.path.stem)]
            self.val_files = named if len(named) < len(self.files) else []
            self.files = [file for file in self.files if file not in self.val_files]

    def identity(self, digest_of: DigestOf) -> dict:
        """Return the digests of the files in order, and the split rule."""
        identity: dict[str, object] = {"files": [digest_of(file.path) for file in self.files]}
        if self.val_files:
            identity["val_files"] = [digest_of(file.path) for file in self.val_files]
        else:
            identity["val_fraction"] = self._fraction_held_out
        return identity

    def documents(self) -> Iterator[Document]:
        """Raise UserError, because there is no text."""
        raise UserError(
            "token files have no text to learn a tokenizer from; give their tokenizer, such as tokenizer=gpt2"
        )
        yield  # makes this function a generator, as in other corpora

    def notes(self) -> list[str]:
        """Return the notes on the files."""
        return self._notes

    def link(self, preparation: Preparation) -> bool:
        """Write a folder that describes the files, unless this folder exists and the files were not moved.

        Raises UserError if an id is outside the tokenizer's vocabulary.
        """
        if len({file.dtype for file in (*self.files, *self.val_files)}) > 1:
            raise UserError(
                "the ids of all token files must have the same size, got 2 bytes and 4 bytes"
            )
        splits = self._splits()
        places = {split: _places(files) for split, files in splits.items()}
        existing = preparation.existing_meta()
        if existing and all(existing[split]["files"] == places[split] for split in SPLITS):
            return False

        tokenizer = preparation.build_tokenizer(self.documents())
        counts = {
            split: counts_of(files, tokenizer, preparation.watcher) | {"files": places[split]}
            for split, files in splits.items()
        }
        for split in SPLITS:
            if not counts[split]["bytes"]:
                raise UserError(nothing_in(split))
        preparation.write_links(tokenizer, self.files[0].dtype.name, counts)
        return True

    def _splits(self) -> dict[str, list[TokenFile]]:
        """Return the files of each split. A file at the boundary between the splits is divided into two parts."""
        if self.val_files:
            return {"train": self.files, "val": self.val_files}

        boundary = int(sum(file.tokens for file in self.files) * (1 - self._fraction_held_out))
        splits: dict[str, list[TokenFile]] = {"train": [], "val": []}
        for file in self.files:
            n_train = min(max(boundary, 0), file.tokens)
            boundary -= file.tokens
            for split, part in zip(SPLITS, file.parted(n_train), strict=True):
                if part.tokens:
                    splits[split].append(part)
        return splits


def counts_of(files: Sequence[TokenFile], tokenizer: Tokenizer, watcher: Watcher) -> dict:
    """Count the ids of a split for meta.json. Raise UserError if an id is outside the vocabulary."""
    byte_lengths = tokenizer.byte_lengths()
    n_tokens = sum(file.tokens for file in files)
    n_counted = 0
    n_documents = 0
    n_bytes = 0
    largest_id = 0

    for file in files:
        ids = np.memmap(file.path, file.dtype, mode="r", offset=file.skip, shape=(file.tokens,))
        for first in range(0, len(ids), IDS_AT_ONCE):
            block = ids[first : first + IDS_AT_ONCE]
            largest_id = max(largest_id, int(block.max()))
            if largest_id >= tokenizer.n_vocab:
                raise UserError(
                    f"{file.path} must contain ids below the vocabulary size {tokenizer.n_vocab}, got {largest_id}; "
                    "use the tokenizer of the file"
                )
            n_bytes += int(byte_lengths[block].sum(dtype=np.int64))
            if tokenizer.end_of_text is not None:
                n_documents += int(np.count_nonzero(block == tokenizer.end_of_text))
            n_counted += len(block)
            watcher.on_progress(
                Progress(
                    phase="counting tokens",
                    n_bytes=n_counted * file.dtype.itemsize,
                    share=n_counted / n_tokens,
                )
            )

    return {
        "documents": max(1, n_documents),
        "bytes": n_bytes,
        "tokens": n_tokens,
        "largest_id": largest_id,
    }


def read_header(path: Path) -> TokenFile:
    """Return the position and the number of the ids in a token file. Raise UserError if it is not a token file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(SNIFFED)
    if len(start) >= HEADER_START.size:
        magic, version, n_tokens = HEADER_START.unpack_from(start)
        dtype = TYPES.get((magic, version))
        if dtype is not None:
            if n_tokens < 1 or size != HEADER + n_tokens * dtype.itemsize:
                raise UserError(
                    f"{path} must contain {n_tokens:,} ids by its header, got {size:,} bytes; copy the file again"
                )
            return TokenFile(path, HEADER, n_tokens, dtype)
        versions = [str(supported) for number, supported in TYPES if number == magic]
        if versions:
            raise UserError(
                f"{path} must have the version {', '.join(versions)} in its header, got the version {version}"
            )

    _check_raw(path, size, start)
    return TokenFile(path, 0, size // RAW.itemsize, RAW)


def _check_raw(path: Path, size: int, start: bytes) -> None:
    if start and all(byte in TEXT for byte in start):
        raise UserError(f"{path} looks like text, but must contain token ids; use data=text")
    if start.startswith(b"\x93NUMPY"):
        raise UserError(
            f"{path} is a NumPy file, but must contain only token ids; write the ids with tofile()"
        )
    if size == 0 or size % RAW.itemsize:
        raise UserError(
            f"{path} must contain ids of {RAW.itemsize} bytes, got a file of {size:,} bytes"
        )

    words = np.frombuffer(start[: len(start) // 4 * 4], dtype="<u2")
    if len(words) >= MANY_ZEROS and not words[1::2].any():
        raise UserError(
            f"{path} must contain ids of {RAW.itemsize} bytes, got probably 4 or 8 bytes; convert the ids to uint16"
        )
    if path.with_name("meta.pkl").exists():
        raise UserError(
            f"{path} contains nanoGPT's ids of characters (see meta.pkl); train on its text with tokenizer=char"
        )


def _find_token_files(key: str, paths: Paths) -> list[TokenFile]:
    patterns: list[str | Path] = []
    for path in paths if isinstance(paths, list) else [paths]:
        if path == STANDARD_INPUT:
            raise UserError(f"{key} must be token files, got '-' (stdin); give the paths of files")
        is_folder = path != "" and Path(path).expanduser().is_dir()
        patterns.append(f"{glob.escape(str(path))}/*.bin" if is_folder else path)
    return [read_header(file) for file in find_files(key, patterns, takes_own=True).files]


def _places(files: Sequence[TokenFile]) -> list[dict]:
    return [
        {
            "path": str(file.path.absolute()),
            "skip": file.skip,
            "tokens": file.tokens,
            "size": file.path.stat().st_size,
        }
        for file in files
    ]
