"""What is in a prepared folder, against counts and searches written out."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptmini import tokenizer
from gptmini.data import inspect
from gptmini.data.inspect import Overlap, inspect_overlap, inspect_split

CODER = tokenizer.byte([])


class Store:
    """A store of given documents, with or without an index of them."""

    def __init__(self, *, train=(), val=(), has_index=True):
        self.has_index = has_index
        self.ids = {"train": [], "val": []}
        self.ends = {"train": [], "val": []}
        for split, texts in (("train", train), ("val", val)):
            for text in texts:
                self.ids[split] += [*CODER.encode(text), CODER.end_of_text]
                self.ends[split].append(len(self.ids[split]))

    def tokens(self, split):
        return np.array(self.ids[split], dtype=np.uint16)

    def document_ends(self, split):
        return np.array(self.ends[split], dtype=np.uint64)


def by_search(held_out, train):
    """What is shared, by comparing each 13 words of a document with each 13 of the training text."""

    def grams_of(text):
        words = re.findall(r"[\u3040-\u9fff]|[^\W\u3040-\u9fff]+", text.lower())
        return {tuple(words[i : i + 13]) for i in range(len(words) - 12)}

    of_documents = [grams for grams in map(grams_of, held_out) if grams]
    of_train = set().union(*map(grams_of, train))
    different = set().union(*of_documents)
    return Overlap(
        n_compared=len(of_documents),
        n_shared=sum(bool(grams & of_train) for grams in of_documents),
        n_grams=len(different),
        n_grams_shared=len(different & of_train),
    )


# Words that often come 13 times in a row as elsewhere, with what belongs to no word.
WORDS = ["One", "two", "one ", "TWO", ", ", "\n", "\u4e2d", "\u3042", "\u3001", "\u00e9t\u00e9"]
TEXT = st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join)


@given(
    held_out=st.lists(TEXT, max_size=4), train=st.lists(TEXT, max_size=4), has_index=st.booleans()
)
def test_overlap_is_what_a_search_finds(held_out, train, has_index):
    store = Store(train=train, val=held_out, has_index=has_index)
    assert inspect_overlap(store, CODER, print) == by_search(held_out, train)


def test_a_passage_at_any_place_of_a_long_text_is_found(monkeypatch):
    monkeypatch.setattr(inspect, "IDS_AT_ONCE", 300)
    words = [f"word{i}" for i in range(400)]  # with spaces 3,090 ids
    held_out = [" ".join(words[i : i + 13]) for i in range(388)] + ["12 " * 12]
    shares = []
    found = inspect_overlap(Store(train=[" ".join(words)], val=held_out), CODER, shares.append)
    assert found == Overlap(n_compared=388, n_shared=388, n_grams=388, n_grams_shared=388)
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_of_much_held_out_text_every_so_many_th_document_is_compared(monkeypatch):
    held_out = [f"{i} " * 20 for i in range(10, 30)]  # of 61 ids
    train = ["Nothing of this kind. ", *held_out[::4]]
    monkeypatch.setattr(inspect, "MOST_COMPARED", 61 * 20 // 4)
    found = inspect_overlap(Store(train=train, val=held_out), CODER, print)
    assert (found.n_compared, found.n_shared) == (5, 5)


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("at_once", [3, 2**20])
def test_the_longest_and_the_first_documents_are_shown(monkeypatch, has_index, at_once):
    monkeypatch.setattr(inspect, "IDS_AT_ONCE", at_once)
    store = Store(train=["bb", "a", "cccc", "dd", "eeeee"], has_index=has_index)
    found = inspect_split(store, "train", CODER, 3)
    assert found.longest == [(5, "eee"), (4, "ccc"), (2, "bb")]
    assert found.first == ["bb", "a", "ccc"]
    assert found.n_ids_used == 6  # the letters and end-of-text

    # A text without end-of-text is one document.
    store.ids["train"] = [0, 1, 1]
    store.has_index = False
    characters = tokenizer.CharTokenizer("ab", end_of_text=False)
    assert inspect_split(store, "train", characters, 2).longest == [(3, "ab")]
