"""Encode with gigatoken, which is the extra `fast`. It encodes text several times faster than tiktoken and tokenizers.

A tokenizer uses gigatoken only for large texts, because loading a vocabulary takes a fraction of a second. The ids are
the same with and without gigatoken.
"""

import base64
import json
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

# Use gigatoken once a tokenizer has encoded this number of characters.
FAST_FROM = 2**20
# gigatoken 0.10 keeps the ids of every piece of text in memory. Load it again after this number of ids, which are 38 MB
# of code or 22 MB of Chinese. After twice this number, its memory had grown by 230 MB for Chinese and by 540 MB for
# random numbers. Loading it takes a tenth of a second.
RENEW_AFTER = 2**24
# Text that shows differences between libraries: contractions, runs of white space, letters of several alphabets,
# numbers of several kinds, combining characters, control characters, special tokens, and every byte of UTF-8.
PROBE = (
    "The cats' hat isn't John's, they'll say; WE'VE 'TIS ''\n\n  \n\t x  y \r\n 12345 3.14 x² Ⅷ ٣ ½ naïve Straße "
    "İstanbul ǅ e\u0301 日本語 한국어 ไทย \U0001f642 \u200d\U0001f469 \x00\x01\x1c\x85\xa0\u2028\u3000 <|endoftext|> "
    "__init__ a_b-c\ufeff\ud7ff\U0010ffff  "
    + "".join(
        map(
            chr,
            [
                *range(0x800),
                *range(0x800, 0xD800, 0x800),
                *range(0xE000, 0x10000, 0x800),
                *range(0x10000, 0x110000, 0x10000),
            ],
        )
    )
)

Encode = Callable[[bytes], np.ndarray]  # returns the ids of a text in UTF-8, uint32 (n,)


def fast_byte_pairs(
    ranks: Sequence[bytes], expected: Callable[[str], Iterable[int]]
) -> Encode | None:
    """Return an encoder for GPT-2's pattern and the byte strings in the order of their ranks.

    Return None if gigatoken is not installed, or if it disagrees with the function `expected`, which returns the ids of
    a text.
    """

    def load() -> Any:
        from gigatoken.gigatoken_rs import BPETokenizer

        lines = (base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(ranks))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ranks.tiktoken"
            path.write_bytes(b"".join(lines))
            return BPETokenizer.from_tiktoken(path, "gpt2")

    return _checked(load, expected)


def fast_library(tree: dict, expected: Callable[[str], Iterable[int]]) -> Encode | None:
    """Return an encoder for the parsed content of a tokenizer.json, in which special tokens are ordinary text.

    Return None in the same cases as fast_byte_pairs, and if gigatoken does not support the tokenizer.
    """
    added = tree.get("added_tokens") or []

    def load() -> Any:
        from gigatoken.gigatoken_rs import load_hf_json

        # The library ignores empty tokens. gigatoken would search for them without end.
        ordinary = [token for token in added if not token["special"] and token["content"]]
        return load_hf_json(json.dumps(tree | {"added_tokens": ordinary}))

    contents = [token["content"] for token in added]
    return _checked(load, expected, PROBE + "".join(f" {one} {one}a{one}" for one in contents))


def _checked(
    load: Callable[[], Any], expected: Callable[[str], Iterable[int]], probe: str = PROBE
) -> Encode | None:
    """Return an encoder of the tokenizer that `load` returns, if it gives the expected ids for a probe."""
    try:
        encode = _Encoder(load)
    except ImportError:
        return None
    except Exception as error:  # gigatoken is in beta, and its errors have several classes
        reason = " ".join(str(error).split())
        warnings.warn(
            f"gigatoken cannot load the tokenizer ({reason:.80}), so encoding is slower",
            stacklevel=2,
        )
        return None
    if encode(probe.encode()).tolist() != list(expected(probe)):
        warnings.warn(
            "gigatoken gives other ids for this tokenizer, so encoding is slower", stacklevel=2
        )
        return None
    return encode


class _Encoder:
    """A tokenizer of gigatoken that is loaded again after RENEW_AFTER ids, to free its memory. Threads may share it."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._tokenizer = load()
        self._n_ids = 0  # number of ids since the last load
        self._lock = Lock()

    def __call__(self, data: bytes) -> np.ndarray:
        """Return the ids of a text in UTF-8, uint32 (n,)."""
        with self._lock:
            if self._n_ids >= RENEW_AFTER:
                self._tokenizer = None  # free the memory before the next load
                self._tokenizer = self._load()
                self._n_ids = 0
            ids = self._tokenizer.encode(data)
            self._n_ids += len(ids)
            return ids
