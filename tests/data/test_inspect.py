"""Inspection of a prepared folder, compared with counts by hand."""

import pytest

from gptmini import tokenizer
from gptmini.data import inspect, prepare
from gptmini.data.inspect import inspect_split
from toys import Documents


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("at_once", [3, 2**20])
def test_the_longest_and_the_first_documents_are_shown(tmp_path, monkeypatch, has_index, at_once):
    monkeypatch.setattr(inspect, "IDS_AT_ONCE", at_once)
    texts = ["bb", "a", "cccc", "dd", "eeeee"]
    store, _ = prepare(Documents(texts, texts), tokenizer.byte, tmp_path)
    ids = store.tokens("train")
    monkeypatch.setattr(store, "tokens", lambda split: ids)
    store.has_index = has_index  # without an index, end-of-text separates documents
    found = inspect_split(store, "train", store.tokenizer, 3)
    assert found.longest == [(5, "eee"), (4, "ccc"), (2, "bb")]
    assert found.first == ["bb", "a", "ccc"]
    assert found.n_ids_used == 6  # the letters and end-of-text


def test_a_text_without_end_of_text_is_one_document(tmp_path):
    store, _ = prepare(Documents(["abb"], ["a"]), tokenizer.character, tmp_path)
    assert inspect_split(store, "train", store.tokenizer, 2).longest == [(3, "ab")]
