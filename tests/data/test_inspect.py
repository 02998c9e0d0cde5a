"""Inspection of a prepared folder, compared with counts by hand."""

import numpy as np
import pytest

from gptmini import tokenizer
from gptmini.data import inspect
from gptmini.data.inspect import inspect_split

CODER = tokenizer.byte([])


class Store:
    """A store of given documents, with or without an index."""

    def __init__(self, texts, *, has_index):
        self.has_index = has_index
        self.ids = []
        self.ends = []
        for text in texts:
            self.ids += [*CODER.encode(text), CODER.end_of_text]
            self.ends.append(len(self.ids))

    def tokens(self, split):
        return np.array(self.ids, dtype=np.uint16)

    def document_ends(self, split):
        return np.array(self.ends, dtype=np.uint64)


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("at_once", [3, 2**20])
def test_the_longest_and_the_first_documents_are_shown(monkeypatch, has_index, at_once):
    monkeypatch.setattr(inspect, "IDS_AT_ONCE", at_once)
    store = Store(["bb", "a", "cccc", "dd", "eeeee"], has_index=has_index)
    found = inspect_split(store, "train", CODER, 3)
    assert found.longest == [(5, "eee"), (4, "ccc"), (2, "bb")]
    assert found.first == ["bb", "a", "ccc"]
    assert found.n_ids_used == 6  # the letters and end-of-text

    # A text without end-of-text is one document.
    store.ids = [0, 1, 1]
    store.has_index = False
    characters = tokenizer.CharTokenizer("ab", end_of_text=False)
    assert inspect_split(store, "train", characters, 2).longest == [(3, "ab")]
