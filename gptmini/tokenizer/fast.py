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
from typing import Any

import numpy as np

# Use gigatoken once a tokenizer has encoded this number of characters.
FAST_FROM = 2**20
# Text that shows differences between libraries: contractions, runs of white space, letters of several alphabets,
# numbers of several kinds, combining characters, control characters and special tokens.
PROBE = (
    "The cats' hat isn't John's, they'll say; WE'VE 'TIS ''\n\n  \n\t x  y \r\n 12345 3.14 x² Ⅷ ٣ ½ naïve Straße "
    "İstanbul ǅ e\u0301 日本語 한국어 ไทย \U0001f642 \u200d\U0001f469 \x00\x01\x1c\x85\xa0\u2028\u3000 <|endoftext|> "
    "__init__ a_b-c\ufeff\ud7ff\U0010ffff  "
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

    def load() -> Any:
        from gigatoken.gigatoken_rs import load_hf_json

        added = tree.get("added_tokens") or []
        ordinary = [token for token in added if not token["special"]]
        return load_hf_json(json.dumps(tree | {"added_tokens": ordinary}))

    return _checked(load, expected)


def _checked(load: Callable[[], Any], expected: Callable[[str], Iterable[int]]) -> Encode | None:
    """Return the method `encode` of the tokenizer that `load` returns, if it gives the expected ids for PROBE."""
    try:
        encode = load().encode
    except ImportError:
        return None
    except Exception as error:  # gigatoken is in beta, and its errors have several classes
        reason = " ".join(str(error).split())
        warnings.warn(
            f"gigatoken cannot load the tokenizer ({reason:.80}), so encoding is slower",
            stacklevel=2,
        )
        return None
    if encode(PROBE.encode()).tolist() != list(expected(PROBE)):
        warnings.warn(
            "gigatoken gives other ids for this tokenizer, so encoding is slower", stacklevel=2
        )
        return None
    return encode
