"""Texts for tests of tokenizers, and GPT-2's tokenizer if tiktoken's files are available."""

import os
import random
from pathlib import Path

import pytest

from gptmini import tokenizer

WORDS = (
    "the theory of these three trees: they're 33 feet  tall,\n"
    "\tand I'll say \u00e9t\u00e9 \u65e5\u672c \U0001f600!"
)
# Full-width punctuation and spaces, tokens of several characters, and a piece of many bytes.
CHINESE = (
    "\u3000\u3000的一是了我\uff0c不人在“他”有这个\uff1a上们来到\uff01\n\n 龍喚士の魔、裏覚醒……GPT模型2019年\r\n"
    + "时大地为子中你说生国年着就那和要她出也得里后自以会家可下而过天去能对小多" * 9
)
END = "<|endoftext|>"


def random_texts(n, seed=0):
    """Return texts of any code points except surrogates; small code points, white space and words are frequent."""
    draw = random.Random(seed)
    anything = [*range(0xD800), *range(0xE000, 0x110000)]
    parts = [
        lambda: draw.choice(WORDS.split(" ")),
        lambda: draw.choice(" \n\t\r\u00a0"),
        lambda: chr(draw.randrange(128)),
        lambda: chr(draw.choice(anything)),
    ]

    def text():
        return "".join(draw.choice(parts)() for _ in range(draw.randrange(60)))

    return [text() for _ in range(n)]


TRAIN = [WORDS * 3, *random_texts(40, seed=1)]


TIKTOKEN_FILES = (
    "6d1cbeee0f20b3d9449abfede4726ed8212e3aee",
    "6c7ea1a7e38e3a7f062df639a5b80947f075ffe6",
)


def tokenizer_of_gpt2():
    """Return GPT-2's tokenizer; skip the test if tiktoken's files are missing."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", "")
    if not folder or not all((Path(folder) / name).is_file() for name in TIKTOKEN_FILES):
        pytest.skip("TIKTOKEN_CACHE_DIR does not name a folder with tiktoken's two files of gpt2")
    return tokenizer.gpt2([])
