"""Write prepared folders with random ids, for measurements that need many tokens but no text."""

from pathlib import Path

import numpy as np

from gptmini.data.prepared.checksums import block_checksums
from gptmini.data.prepared.meta import FORMAT, write_meta
from gptmini.tokenizer import Tokenizer

DOCUMENT = 1000  # tokens per document
N_HELD_OUT = 10**5  # tokens


def write_store(folder: Path, ids: np.ndarray, n_tokens: int, tokenizer: Tokenizer) -> None:
    """Write a prepared folder that repeats the ids; both splits start with the first id.

    Args:
        folder: folder to create.
        ids: uint16 (n,).
        n_tokens: number of training tokens.
        tokenizer: tokenizer of the ids.
    """
    folder.mkdir(parents=True)
    meta: dict = {
        "format": FORMAT,
        "source": {"corpus": "drawn"},
        "builder": {"name": "drawn"},
        "fingerprint": f"drawn {n_tokens}",
        "dtype": "uint16",
        "tokenizer": tokenizer.to_dict(),
    }
    for split, n in (("train", n_tokens), ("val", min(n_tokens, N_HELD_OUT))):
        tokens = folder / f"{split}.bin"
        with tokens.open("wb") as file:
            for first in range(0, n, len(ids)):
                file.write(ids[: n - first].tobytes())
        index = folder / f"{split}.index"
        ends = np.arange(DOCUMENT, n + 1, DOCUMENT, dtype="<u8")
        ends.tofile(index)

        meta[split] = {
            "documents": len(ends),
            "bytes": n,
            "tokens": n,
            "largest_id": int(ids.max()),
            "crc32": block_checksums(tokens),
            "index_crc32": block_checksums(index),
        }
    write_meta(folder, meta)
