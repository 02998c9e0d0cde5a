"""GPT-2's tokenizer, where tiktoken's files of it are at hand."""

import os
from pathlib import Path

import pytest

from gptmini import tokenizer

TIKTOKEN_FILES = (
    "6d1cbeee0f20b3d9449abfede4726ed8212e3aee",
    "6c7ea1a7e38e3a7f062df639a5b80947f075ffe6",
)


@pytest.fixture
def gpt2():
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", "")
    if not folder or not all((Path(folder) / name).is_file() for name in TIKTOKEN_FILES):
        pytest.skip("TIKTOKEN_CACHE_DIR does not name a folder with tiktoken's two files of gpt2")
    return tokenizer.gpt2([])
