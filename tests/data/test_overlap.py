"""Overlap of two sets of documents: the same as by looking for every window as text."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gptmini.data import overlap
from gptmini.data.overlap import Overlap, overlap_of, window_hashes


def nobody(text):
    """Take no notice."""


def by_search(held_out, train, window):
    """What is shared, by looking for each window as text."""
    compared = [text for text in held_out if len(text) >= window]
    windows = [{text[i : i + window] for i in range(len(text) - window + 1)} for text in compared]
    different = set().union(*windows)
    found = {some for some in different if any(some in other for other in train)}
    return Overlap(
        n_compared=len(compared),
        n_shared=sum(bool(of_text & found) for of_text in windows),
        n_windows=len(different),
        n_windows_shared=len(found),
    )


TEXTS = st.lists(st.text("ab", max_size=30), max_size=5)


@settings(max_examples=200, deadline=None)
@given(held_out=TEXTS, train=TEXTS)
def test_overlap_is_what_a_search_finds(held_out, train):
    original = overlap.WINDOW, overlap.TABLE_BITS
    overlap.WINDOW, overlap.TABLE_BITS = 5, 10
    try:
        found = overlap_of(held_out, train, nobody)
    finally:
        overlap.WINDOW, overlap.TABLE_BITS = original
    assert found == by_search(held_out, train, 5)


def test_a_passage_anywhere_in_a_long_text_is_found(monkeypatch):
    monkeypatch.setattr(overlap, "AT_ONCE", 1000)
    draw = random.Random(0)

    def words(n):
        return "".join(chr(draw.randrange(0x4E00, 0x9000)) for _ in range(n))

    passage = words(50)
    for place in (0, 940, 960, 999, 1000, 2950):
        train = words(place) + passage + words(2950 - place)
        held_out = [words(80), words(20) + passage + words(9), passage[:49] + words(9), "short"]
        found = overlap_of(held_out, [words(70), train], nobody)
        # The documents have 31, 30 and 9 windows.
        assert found == Overlap(n_compared=3, n_shared=1, n_windows=70, n_windows_shared=1)


def test_each_window_has_a_hash_of_its_text_alone():
    text = "".join(random.Random(1).choices("abcdefg \u65e5\U0001f600", k=400))
    hashes = window_hashes(text)
    assert hashes.shape == (351,)
    assert hashes.dtype == np.uint64
    assert window_hashes(text[123:200]).tolist() == hashes[123:151].tolist()
    assert len(set(hashes.tolist())) == 351
    assert window_hashes(text[:49]).shape == (0,)
