"""Byte pairs learned from a text: which, from what, and in how much memory."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from gptmini import tokenizer
from gptmini.tokenizer import learning
from refusals import refused_keys
from tokenizer.texts import WORDS, random_texts
from toys import documents_of


def test_bpe_learns_the_most_frequent_pairs_first():
    learned = tokenizer.bpe(documents_of(["xyz " * 6 + "xyw " * 4]), vocab_size=256 + 3 + 1).ranks[
        256:
    ]
    assert learned == [b"xy", b" xy", b" xyz"]  # seen 10, 9 and 5 times: no space before the first


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", [""]),
        ("abcdefg", ["abcdefg"]),
        ("ab cd\nef gh", ["ab cd\n", "ef gh"]),
        ("ab cd ef gh", ["ab cd ", "ef gh"]),
        ("abcdefghijk", ["abcdefg", "hijk"]),
        ("\n\n\nabcdefghi\nj", ["\n\n\n", "abcdefg", "hi\nj"]),
    ],
)
def test_a_long_text_is_cut_behind_a_line_break_or_else_a_space(text, parts):
    assert list(learning.in_slices(text, 7)) == parts


def test_bpe_learns_the_same_merges_from_a_text_in_slices(monkeypatch):
    text = "".join(f"{' '.join(random_texts(3, seed=i))} the end of {WORDS}\n" for i in range(60))
    whole = tokenizer.bpe(documents_of([text]), vocab_size=400)
    monkeypatch.setattr(learning, "SLICE", 500)
    assert tokenizer.bpe(documents_of([text]), vocab_size=400).ranks == whole.ranks


# Linux's own account of the memory of a process: what it holds now, and the most that it ever held.
MEMORY = """
import re
from functools import partial
from pathlib import Path
from gptmini import tokenizer
from gptmini.data import Document
word = "abcdefghijklmnopqrstuvwxyz"
text = "".join(f"{word[i % 26:]}{i % 997} and {word[:i % 24]}\\n" for i in range(4000)) * 100
def kilobytes(name):
    return int(re.search(rf"{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
before = kilobytes("VmRSS")
tokenizer.bpe([Document("train", text)], vocab_size=300)
print(len(text), (kilobytes("VmHWM") - before) * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_bpe_takes_no_memory_that_grows_with_a_hundred_times_the_text():
    command = [sys.executable, "-c", MEMORY]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    n_characters, n_bytes = map(int, printed.split())
    assert n_bytes < 30 * n_characters


def test_bpe_learns_from_the_training_split_alone():
    learned = tokenizer.bpe(documents_of(["abab" * 9]), vocab_size=300)
    assert learned.ranks[256] == b"ab"

    with_val = tokenizer.bpe(documents_of(["abab" * 9], ["cdcd" * 99]), vocab_size=300)
    assert with_val.to_dict() == learned.to_dict()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", 256),
        ("vocab_size", 2**20 + 1),
        ("vocab_size", 300.0),
        ("vocab_size", None),
        ("train_bytes", 0),
        ("train_bytes", "1"),
    ],
)
def test_bpe_and_its_settings_refuse_a_value_by_its_key(key, value):
    settings = {"vocab_size": 300} | {key: value}
    assert refused_keys(tokenizer.BytePairSettings, **settings) == {key}
    assert refused_keys(partial(tokenizer.bpe, documents_of(["text"])), **settings) == {key}


def test_bpe_of_a_long_text_learns_from_a_sample_of_all_of_it(monkeypatch):
    monkeypatch.setattr(learning, "SAMPLED_SLICE", 64)
    texts = [f"text {i} of many texts, " * 20 + "\n" for i in range(200)]
    n_bytes = sum(map(len, texts))
    documents = documents_of(texts, ["held out"])
    samples = [list(learning._training_slices(documents, n_bytes // 10)) for _ in range(2)]
    assert samples[0] == samples[1]
    assert 0.8 * n_bytes / 10 < sum(map(len, samples[0])) < 1.05 * n_bytes / 10
    places = ["".join(texts).index(some) for some in samples[0]]
    assert min(places) < n_bytes / 10
    assert max(places) > n_bytes * 8 / 10
    assert not any("held out" in some for some in samples[0])

    whole = list(learning._training_slices(documents_of(texts), n_bytes))
    assert "".join(whole) == "".join(texts)
    assert list(learning._training_slices(documents_of(["short"]), 1)) == ["short"]
