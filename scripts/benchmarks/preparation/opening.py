"""Opening a folder of many tokens, and cutting batches out of it."""

import argparse
import os
import time
from pathlib import Path

import numpy as np

from gptmini.data.batches import cut_windows, window_starts
from gptmini.data.store import FORMAT, TokenStore, block_checksums, write_meta
from gptmini.tokenizer import byte

MODEL_SPEED = 550_000  # tokens a second of the 124 M model on one fast GPU
CONTEXT_LENGTH = 1024
BATCH_SIZE = 64


def opening(arguments: argparse.Namespace) -> None:
    """Opening a folder of many tokens, and cutting batches out of it."""
    for n_tokens in (10**5, arguments.tokens):
        folder = arguments.folder / f"store-{n_tokens}"
        if not folder.exists():
            write_store(folder, n_tokens)
        for state in ("cold", "warm"):
            store = None  # to give a mapped file back takes its time too
            if state == "cold":
                drop_from_memory(folder)
            began = time.perf_counter()
            store = TokenStore(folder)
            opened = time.perf_counter() - began
            speed = batches_a_second(store) * BATCH_SIZE * CONTEXT_LENGTH
            print(
                f"  {n_tokens:,} tokens, {state}: opened in {opened * 1000:.1f} ms, {speed / 1e6:,.0f} M tokens/s, "
                f"{speed / MODEL_SPEED:,.0f} times the 124 M model's",
                flush=True,
            )


def write_store(folder: Path, n_tokens: int) -> None:
    """Write a prepared folder of documents of a thousand random ids."""
    folder.mkdir()
    ids = np.random.default_rng(0).integers(0, 256, 10**6, dtype=np.uint16)
    meta: dict = {
        "format": FORMAT,
        "source": {"corpus": "random"},
        "builder": {"name": "byte"},
        "fingerprint": str(n_tokens),
        "dtype": "uint16",
        "tokenizer": byte([]).to_dict(),
    }
    for split, n in (("train", n_tokens), ("val", 10**5)):
        paths = [folder / f"{split}.bin", folder / f"{split}.index"]
        with paths[0].open("wb") as file:
            for first in range(0, n, len(ids)):
                file.write(ids[: n - first].tobytes())
        ends = np.arange(1000, n + 1, 1000, dtype="<u8")
        ends.tofile(paths[1])

        meta[split] = {
            "documents": len(ends),
            "bytes": n,
            "tokens": n,
            "largest_id": 255,
            "crc32": block_checksums(paths[0]),
            "index_crc32": block_checksums(paths[1]),
        }
    write_meta(folder, meta)


def drop_from_memory(folder: Path) -> None:
    """Let the system forget what it keeps of the files of a folder."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def batches_a_second(store: TokenStore) -> float:
    """Batches of training windows that are cut in a second."""
    tokens = store.tokens("train")
    n_batches = 0
    began = time.perf_counter()
    while n_batches < 500 and time.perf_counter() - began < 10:
        numbers = np.arange(n_batches * BATCH_SIZE, (n_batches + 1) * BATCH_SIZE)
        starts = window_starts(
            numbers,
            n_tokens=store.n_tokens("train"),
            context_length=CONTEXT_LENGTH,
            seed=1,
        )
        cut_windows(tokens, starts, CONTEXT_LENGTH)
        n_batches += 1
    return n_batches / (time.perf_counter() - began)
