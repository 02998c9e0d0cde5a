"""Prepared tokens on disk: train.bin, val.bin and meta.json in a folder, complete or not there; see data/README.md."""

import hashlib
import json
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from gptmini.checks import UserError, file_name
from gptmini.files import flush_file, new_folder

FORMAT = 1
SPLITS = ("train", "val")


class TokenStore:
    """One prepared folder, checked when it is opened; its tokens stay on disk and are mapped when read."""

    def __init__(self, folder: Path) -> None:
        """Open a folder that prepare made; UserError if a file is missing, edited, cut short, or of another format."""
        self.folder = Path(folder)
        self.meta = _read_meta(self.folder)
        self.tokenizer: dict = self.meta["tokenizer"]  # its to_dict()
        self.fingerprint: str = self.meta["fingerprint"]  # of everything that made it: texts, split, tokenizer, format
        self._dtype = np.dtype(self.meta["dtype"]).newbyteorder("<")
        for split in SPLITS:
            path, entry = self.folder / f"{split}.bin", self.meta[split]
            size = path.stat().st_size if path.is_file() else -1
            whole = size == entry["tokens"] * self._dtype.itemsize > 0
            if not whole or zlib.crc32(np.memmap(path, mode="r")) != entry["crc32"]:
                raise UserError(f"{path} does not hold the tokens that meta.json describes; {_remedy(self.folder)}")

    def tokens(self, split: str) -> np.ndarray:
        """Ids of a split, (n_tokens,), uint16 or uint32, read-only and memory-mapped."""
        return np.asarray(np.memmap(self.folder / f"{split}.bin", dtype=self._dtype, mode="r"))

    def n_tokens(self, split: str) -> int:
        """Ids in a split, end-of-text included."""
        return self.meta[split]["tokens"]

    def n_bytes(self, split: str) -> int:
        """UTF-8 bytes of the text of a split."""
        return self.meta[split]["bytes"]

    def tokens_per_byte(self, split: str) -> float:
        """Ids for each byte of text, end-of-text included: what turns nats per token into bits per byte."""
        return self.n_tokens(split) / self.n_bytes(split)


def prepare(corpus, build_tokenizer: Callable, root: str | Path) -> tuple[TokenStore, bool]:
    """Open the tokens of a corpus under a tokenizer, writing them first if they are not there.

    corpus has name, identity() and documents(split); build_tokenizer is a builder of gptmini.tokenizer, or a
    functools.partial of one; root holds the prepared folders. Returns the store, and whether it had to be written.
    Raises UserError: a text that cannot be read or encoded, a split without text, or a damaged prepared folder.
    """
    if "\0" in str(root):  # no system has such a name, and Python's own error for it is a bare ValueError
        raise UserError(f"data_dir must be the name of a folder, got {str(root)!r}")

    file_name("data.name", corpus.name)  # of which the folder's name is made

    builder = build_tokenizer if isinstance(build_tokenizer, partial) else partial(build_tokenizer)
    described = {"name": builder.func.__name__, **builder.keywords}
    recipe = {"format": FORMAT, "source": corpus.identity(), "builder": described}
    fingerprint = _digest(recipe)
    folder = Path(root) / f"{corpus.name}-{described['name']}-{fingerprint[:12]}"

    written = not folder.exists()
    if written:
        _write_whole(folder, corpus, build_tokenizer, recipe | {"fingerprint": fingerprint})

    if not (folder / "meta.json").is_file():
        raise UserError(f"{folder} is not as it was prepared: meta.json is missing; {_remedy(folder)}")
    store = TokenStore(folder)
    if store.fingerprint != fingerprint:  # renamed by hand
        raise UserError(f"{folder} holds the tokens of another text or tokenizer; {_remedy(folder)}")
    return store, written


def _write_whole(folder: Path, corpus, build_tokenizer: Callable, recipe: dict) -> None:
    """Train the tokenizer, then write all files into a folder that is complete or not there."""
    tokenizer = build_tokenizer(corpus.documents("train"), corpus.documents("val"))
    with new_folder(folder) as temporary:
        _write(temporary, corpus, tokenizer, recipe)


def _write(folder: Path, corpus, tokenizer, recipe: dict) -> None:
    dtype = np.dtype("<u2" if tokenizer.n_vocab <= 2**16 else "<u4")
    meta = recipe | {"dtype": dtype.name, "tokenizer": tokenizer.to_dict()}
    for split in SPLITS:
        meta[split] = _write_split(folder / f"{split}.bin", corpus.documents(split), tokenizer, dtype)
        if not meta[split]["bytes"]:
            raise UserError(f"the {split} split must hold text, got none; give more text")
    meta["digest"] = _digest(meta)
    with (folder / "meta.json").open("wb") as file:
        file.write(json.dumps(meta, indent=1).encode("utf-8"))
        flush_file(file)


def _write_split(path: Path, documents, tokenizer, dtype: np.dtype) -> dict:
    counts = {"documents": 0, "bytes": 0, "tokens": 0, "crc32": 0}

    def counted():
        for text in documents:
            counts["documents"] += 1
            counts["bytes"] += len(text.encode())
            yield text

    end = np.array([] if tokenizer.end_of_text is None else [tokenizer.end_of_text], dtype=np.uint32)
    with path.open("wb") as file:
        for ids in tokenizer.encode_batch(counted()):
            data = np.concatenate((ids, end)).astype(dtype).tobytes()
            counts["tokens"] += len(data) // dtype.itemsize
            counts["crc32"] = zlib.crc32(data, counts["crc32"])
            file.write(data)
        flush_file(file)
    return counts


def _read_meta(folder: Path) -> dict:
    path = folder / "meta.json"
    if not path.is_file():
        raise UserError(f"{folder} is not a prepared folder: it has no meta.json; run prepare.py, or name another")
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        digest = meta.pop("digest")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise UserError(f"{path} is not the JSON that was written; {_remedy(folder)}") from None
    if meta.get("format") != FORMAT:
        raise UserError(f"{path} has format {meta.get('format')!r}, this version reads {FORMAT}; {_remedy(folder)}")
    if _digest(meta) != digest:
        raise UserError(f"{path} was edited: its digest does not match; {_remedy(folder)}")
    try:
        counts = [meta[split][name] for split in SPLITS for name in ("documents", "bytes", "tokens", "crc32")]
        named = type(meta["fingerprint"]) is str and meta["dtype"] in ("uint16", "uint32")
        whole = named and isinstance(meta["tokenizer"], dict) and meta["train"]["bytes"] * meta["val"]["bytes"]
        whole = whole and all(type(count) is int and count >= 0 for count in counts)
    except (KeyError, TypeError):
        whole = False
    if not whole:
        raise UserError(f"{path} lacks what this version wrote; {_remedy(folder)}")
    return meta


def _remedy(folder: Path) -> str:
    return f"delete {folder} to prepare it again"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
