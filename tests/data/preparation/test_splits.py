"""The rule for held-out documents: near the wanted share, whatever the documents are."""

import hashlib

import numpy as np
import pytest

from gptmini.data import Document
from gptmini.data.preparation.splits import Census, split_of


def census_of(texts):
    """The counts of whole documents."""
    census = Census()
    for text in texts:
        census.count(Document(None, text))
    return census


def split_by(texts, fraction):
    """The splits of whole documents, and what is said of them."""
    rule = census_of(texts).rule(fraction)
    documents = list(rule.apply(Document(None, text) for text in texts))
    return documents, rule.note


def test_many_documents_go_by_the_first_byte_of_their_digest():
    texts = [f"Document {i} of many." for i in range(2000)]
    documents, note = split_by(texts, 0.1)
    assert note is None
    for document in documents:
        first = hashlib.sha256(document.text.encode()).digest()[0]
        assert document.split == ("val" if first < 26 else "train") == split_of(document.text, 0.1)


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5])
@pytest.mark.parametrize("n", [2, 3, 7])
def test_a_few_documents_are_held_out_in_about_the_wanted_share(n, fraction):
    texts = [f"{i} and more text, " * (300 + i) for i in range(n)]
    documents, _ = split_by(texts, fraction)
    n_val = sum(len(document.text) for document in documents if document.split == "val")
    share = n_val / sum(map(len, texts))
    assert abs(share - fraction) <= fraction / 2


def test_a_document_in_parts_goes_where_its_first_part_says():
    first = next(f"Part {i}." for i in range(999) if split_of(f"Part {i}.", 0.5) == "val")
    other = next(f"Part {i}." for i in range(999) if split_of(f"Part {i}.", 0.5) == "train")
    parts = [
        Document(None, first, ends=False),
        Document(None, other, ends=True),
        Document(None, other * 2, ends=True),
    ]
    census = Census()
    for part in parts:
        census.count(part)
    assert census.n_documents == 2
    rule = census.rule(0.6)
    assert [part.split for part in rule.apply(parts)] == ["val", "val", split_of(other * 2, 0.6)]


def test_counts_of_arrays_are_those_of_documents():
    texts = [f"Text {i}, \u00e9." for i in range(99)]
    wanted = census_of(texts)
    census = Census()
    for some in (texts[:50], texts[50:]):
        census.add(
            hash_bytes=np.array([hashlib.sha256(text.encode()).digest()[0] for text in some]),
            n_bytes=np.array([len(text.encode()) for text in some]),
            n_characters=np.array([len(text) for text in some]),
            ends=np.ones(len(some), dtype=bool),
        )
    assert census.n_bytes.tolist() == wanted.n_bytes.tolist()
    assert (census.n_documents, census.n_characters) == (wanted.n_documents, wanted.n_characters)


def test_documents_with_a_split_keep_it():
    documents = [Document("val", "a" * 50), Document(None, "b" * 10), Document("train", "c" * 40)]
    census = Census()
    for document in documents:
        census.count(document)
    assert census.n_documents == 1
    wanted = [documents[0], Document("train", "bbbbb"), Document("val", "bbbbb"), documents[2]]
    assert list(census.rule(0.5).apply(documents)) == wanted
