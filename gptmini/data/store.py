"""Prepared tokens on disk: train.bin, val.bin and meta.json in a folder, complete or not there; see data/README.md."""

import hashlib
import json
import mmap
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from gptmini.checks import UserError, file_name
from gptmini.data.corpus import Corpus, Document
from gptmini.files import flush_file, naming, new_folder

FORMAT = 1
SPLITS = ("train", "val")
COUNTS = ("documents", "bytes", "tokens", "crc32")  # what meta.json says of each split
IDS_AT_ONCE = 2**22  # ids that are checked at once, so that they stay in the processor's cache


class Encoder(Protocol):
    """What preparation needs of a tokenizer."""

    n_vocab: int  # ids, end-of-text included
    end_of_text: int | None  # id that ends a document; None for a tokenizer without one

    def encode_batch(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Ids of each text, uint32."""
        ...

    def to_dict(self) -> dict:
        """Everything that rebuilds the tokenizer, in plain JSON types."""
        ...


class TokenStore:
    """One prepared folder, checked when it is opened; its tokens stay on disk and are mapped when read."""

    def __init__(self, folder: Path) -> None:
        """Open a folder that prepare made; UserError if a file is missing, edited, cut short, or of another format."""
        self.folder = Path(folder)
        self.meta = _read_meta(self.folder)
        self.tokenizer: dict = self.meta["tokenizer"]  # its to_dict()
        self.fingerprint: str = self.meta["fingerprint"]  # of texts, split, tokenizer and format
        self._dtype = np.dtype(self.meta["dtype"]).newbyteorder("<")
        self._maps: dict[str, mmap.mmap] = {}
        self._largest_ids = {split: self._check_split(split) for split in SPLITS}

    def __getstate__(self) -> dict:
        """What a copy of the store takes over: all but the mapped files, which the copy maps again."""
        return self.__dict__ | {"_maps": {}}

    def tokens(self, split: str) -> np.ndarray:
        """Ids of a split, (n_tokens,), uint16 or uint32, read-only and memory-mapped."""
        return np.frombuffer(self._map(split), dtype=self._dtype)

    def n_tokens(self, split: str) -> int:
        """Ids in a split, end-of-text included."""
        return self.meta[split]["tokens"]

    def n_bytes(self, split: str) -> int:
        """UTF-8 bytes of the text of a split."""
        return self.meta[split]["bytes"]

    def tokens_per_byte(self, split: str) -> float:
        """Ids for each byte of text, end-of-text included: what turns nats per token into bits per byte."""
        return self.n_tokens(split) / self.n_bytes(split)

    def check_vocabulary(self, n_vocab: int) -> None:
        """Raise UserError unless every id of both splits is below n_vocab, the number of a tokenizer's ids."""
        for split, largest in self._largest_ids.items():
            if largest >= n_vocab:
                raise UserError(
                    f"{self._path(split)} must hold ids below {n_vocab}, which is the number of its tokenizer's ids, "
                    f"got {largest}; {_remedy(self.folder)}"
                )

    def check_size(self, split: str) -> None:
        """Raise UserError if the file of a split was cut short since the folder was opened.

        To be called before tokens are read: where a mapped file ends too soon, reading ends the process with SIGBUS.
        """
        mapped = self._map(split)
        size = mapped.size()  # the system's answer for the mapped file, even if its name is gone
        if size < len(mapped):
            raise UserError(
                f"{self._path(split)} must stay as it is while it is read, got {size:,} bytes where there were "
                f"{len(mapped):,}; {_remedy(self.folder)}"
            )

    def _map(self, split: str) -> mmap.mmap:
        """The file of a split, mapped into memory the first time that it is asked for."""
        if split not in self._maps:
            with self._path(split).open("rb") as file:
                self._maps[split] = mmap.mmap(file.fileno(), length=0, access=mmap.ACCESS_READ)
        return self._maps[split]

    def _path(self, split: str) -> Path:
        return self.folder / f"{split}.bin"

    def _check_split(self, split: str) -> int:
        """Return a split's largest id; UserError unless its file has the size and the checksum that meta.json gives."""
        path = self._path(split)
        size = path.stat().st_size if path.is_file() else 0
        expected_size = self.n_tokens(split) * self._dtype.itemsize
        if size == expected_size and size > 0:
            checksum, largest = _checksum_and_largest(self.tokens(split))
            if checksum == self.meta[split]["crc32"]:
                return largest
        raise UserError(
            f"{path} does not hold the tokens that meta.json describes; {_remedy(self.folder)}"
        )


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


def prepare(
    corpus: Corpus, build_tokenizer: Callable[..., Encoder], root: str | Path
) -> tuple[TokenStore, bool]:
    """Open the tokens of a corpus under a tokenizer, writing them first if they are not there.

    Args:
        corpus: the text.
        build_tokenizer: a builder of gptmini.tokenizer, or a functools.partial of one; called with the documents.
        root: folder that holds the prepared folders.

    Returns the store, and whether it had to be written.
    Raises UserError: a text that cannot be read or encoded, a split without text, or a damaged prepared folder.
    """
    recipe, folder = _planned(corpus, build_tokenizer, root)
    is_new = not folder.exists()
    if is_new:
        tokenizer = build_tokenizer(corpus.documents())
        with new_folder(folder) as temporary:
            _write(temporary, corpus, tokenizer, recipe, place=folder)
    return _open(folder, recipe["fingerprint"]), is_new


def open_prepared(
    corpus: Corpus, build_tokenizer: Callable[..., Encoder], root: str | Path
) -> TokenStore | None:
    """Open the tokens of a corpus under a tokenizer, without writing anything; None if they are not there.

    The arguments are those of prepare.
    Raises UserError: a text that cannot be read, or a damaged prepared folder.
    """
    recipe, folder = _planned(corpus, build_tokenizer, root)
    if not folder.exists():
        return None
    return _open(folder, recipe["fingerprint"])


def _planned(
    corpus: Corpus, build_tokenizer: Callable[..., Encoder], root: str | Path
) -> tuple[dict, Path]:
    """What the tokens of a corpus under a tokenizer follow from, with its fingerprint, and the folder for them."""
    # No system has a name with a zero byte, and Python's own error for it is a bare ValueError.
    if "\0" in str(root):
        raise UserError(f"data_dir must be the name of a folder, got {str(root)!r}")
    file_name("data.name", corpus.name)

    builder = build_tokenizer
    if not isinstance(builder, partial):
        builder = partial(build_tokenizer)
    kind = builder.func.__name__
    recipe = {
        "format": FORMAT,
        "source": corpus.identity(),
        "builder": {"name": kind, **builder.keywords},
    }
    fingerprint = _digest(recipe)
    folder = Path(root) / f"{corpus.name}-{kind}-{fingerprint[:12]}"
    return recipe | {"fingerprint": fingerprint}, folder


def _open(folder: Path, fingerprint: str) -> TokenStore:
    """Open a prepared folder that exists; UserError if it is damaged, or of another fingerprint."""
    if not (folder / "meta.json").is_file():
        raise UserError(
            f"{folder} is not as it was prepared: meta.json is missing; {_remedy(folder)}"
        )
    store = TokenStore(folder)
    if store.fingerprint != fingerprint:  # a folder that was renamed by hand
        raise UserError(
            f"{folder} holds the tokens of another text or tokenizer; {_remedy(folder)}"
        )
    return store


def _write(folder: Path, corpus: Corpus, tokenizer: Encoder, recipe: dict, *, place: Path) -> None:
    """Encode every document into the file of its split, then write meta.json; an error of writing names place."""
    dtype = np.dtype("<u2" if tokenizer.n_vocab <= 2**16 else "<u4")
    with (folder / "train.bin").open("wb") as train, (folder / "val.bin").open("wb") as val:
        writers = {
            "train": _SplitWriter(train, tokenizer, dtype, place),
            "val": _SplitWriter(val, tokenizer, dtype, place),
        }
        for document in corpus.documents():
            writers[document.split].write(document)
        with naming(place):
            flush_file(train)
            flush_file(val)

    meta = recipe | {"dtype": dtype.name, "tokenizer": tokenizer.to_dict()}
    for split in SPLITS:
        counts = writers[split].counts
        if not counts["bytes"]:
            raise UserError(f"the {split} split must hold text, got none; give more text")
        meta[split] = counts
    meta["digest"] = _digest(meta)
    with naming(place), (folder / "meta.json").open("wb") as file:
        file.write(json.dumps(meta, indent=1).encode("utf-8"))
        flush_file(file)


class _SplitWriter:
    """Appends the ids of documents to the file of one split, and counts what it writes."""

    def __init__(self, file: BinaryIO, tokenizer: Encoder, dtype: np.dtype, place: Path) -> None:
        self.counts = dict.fromkeys(COUNTS, 0)
        self._file = file
        self._place = place
        self._tokenizer = tokenizer
        self._dtype = dtype

        end = [] if tokenizer.end_of_text is None else [tokenizer.end_of_text]
        self._end = np.array(end, dtype=np.uint32)  # ids after every document

    def write(self, document: Document) -> None:
        """Append one document; UserError where the tokenizer cannot encode it."""
        (ids,) = self._tokenizer.encode_batch([document.text])  # (n,)
        data = np.concatenate((ids, self._end)).astype(self._dtype).tobytes()
        with naming(self._place):
            self._file.write(data)

        self.counts["documents"] += 1
        self.counts["bytes"] += len(document.text.encode())
        self.counts["tokens"] += len(data) // self._dtype.itemsize
        self.counts["crc32"] = zlib.crc32(data, self.counts["crc32"])


def _checksum_and_largest(ids: np.ndarray) -> tuple[int, int]:
    """CRC-32 of the bytes of ids, (n,) with n at least 1, and the largest id, both in one pass over the file."""
    checksum = 0
    largest = 0
    for first in range(0, len(ids), IDS_AT_ONCE):
        some = ids[first : first + IDS_AT_ONCE]
        checksum = zlib.crc32(some.data, checksum)
        largest = max(largest, int(some.max()))
    return checksum, largest


def _read_meta(folder: Path) -> dict:
    """What meta.json says; UserError unless it is as this version wrote it."""
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
        raise UserError(f"{path} is not the JSON that was written; {_remedy(folder)}") from None

    if meta.get("format") != FORMAT:
        raise UserError(
            f"{path} has format {meta.get('format')!r}, this version reads {FORMAT}; "
            f"{_remedy(folder)}"
        )
    if _digest(meta) != digest:
        raise UserError(f"{path} was edited: its digest does not match; {_remedy(folder)}")
    if not _is_complete(meta):
        raise UserError(f"{path} lacks what this version wrote; {_remedy(folder)}")
    return meta


def _is_complete(meta: dict) -> bool:
    """Whether meta.json holds every field that is read, each of its type."""
    try:
        counts = [meta[split][name] for split in SPLITS for name in COUNTS]
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


def _remedy(folder: Path) -> str:
    return f"delete {folder} to prepare it again"


def _digest(value: object) -> str:
    """SHA-256 of a value in plain JSON types, in hexadecimal."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
