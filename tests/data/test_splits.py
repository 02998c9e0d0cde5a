"""Which documents are held out: near the wanted share, whatever the documents are."""

import hashlib

import pytest

from gptmini.data import Document, Watcher
from gptmini.data.corpus import split_of
from gptmini.data.splits import SplitDocuments, build_from, cut_at_line
from gptmini.user_error import UserError
from toys import Documents, texts_of


def splits_of(texts, val_fraction, boundary=None):
    """The documents of both splits, and the notes; a boundary is what the corpus says of itself."""
    corpus = Documents(undecided=texts, val_fraction=val_fraction)
    corpus.boundary = lambda: boundary
    notes = []
    documents = SplitDocuments(corpus, Watcher(on_note=notes.append))
    found = build_from(list, documents)
    train = [document.text for document in found if document.split == "train"]
    val = [document.text for document in found if document.split == "val"]
    assert len(train) + len(val) == len(found)
    return train, val, notes


def test_many_documents_go_by_the_first_byte_of_their_digest():
    texts = [f"Document {i} of many." for i in range(2000)]
    train, val, notes = splits_of(texts, 0.1)
    assert notes == []
    held_out = [text for text in texts if hashlib.sha256(text.encode()).digest()[0] < 26]
    assert val == held_out
    assert train == [text for text in texts if text not in held_out]


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_a_few_documents_are_held_out_in_about_the_wanted_share(n, fraction):
    texts = [f"{i} and more text, " * (300 + i) for i in range(n)]
    train, val, _ = splits_of(texts, fraction)
    share = len("".join(val)) / len("".join(texts))
    assert abs(share - fraction) <= fraction / 2
    assert "".join(sorted(train + val)).count(",") == "".join(texts).count(",")


def test_text_that_is_divided_by_place_is_said_to_be_unless_it_is_one_document():
    train, val, notes = splits_of(["a" * 70, "b" * 30], 0.1)
    assert (train, val) == (["a" * 70, "b" * 20], ["b" * 10])
    assert len(notes) == 1
    assert notes[0].startswith("the last 10% of the text is held out, which may cut a document in")
    assert splits_of(["a" * 70 + "b" * 30], 0.1) == (["a" * 70 + "b" * 20], ["b" * 10], [])


@pytest.mark.parametrize(
    ("boundary", "train", "val"),
    [
        (50, ["a" * 50], ["b" * 50]),  # between the documents
        (25, ["a" * 25], ["a" * 25, "b" * 50]),
        (90, ["a" * 50, "b" * 40], ["b" * 10]),
    ],
)
def test_a_boundary_lies_anywhere(boundary, train, val):
    assert splits_of(["a" * 50, "b" * 50], 0.5, boundary) == (train, val, [])


def test_the_boundary_lies_at_the_beginning_of_its_line():
    assert splits_of(["one\ntwo\nthree\nfour"], 0.4, 11)[:2] == (["one\ntwo\n"], ["three\nfour"])
    # A line break belongs to the line that it ends.
    assert splits_of(["one\ntwo\nthree\nfour"], 0.4, 7)[:2] == (["one\n"], ["two\nthree\nfour"])
    assert splits_of(["one\ntwo\nthree\nfour"], 0.4, 8)[:2] == (["one\ntwo\n"], ["three\nfour"])


@pytest.mark.parametrize(("n_bytes", "n_before"), [(1, 1), (2, 2), (3, 2), (4, 3), (6, 3)])
def test_a_character_is_not_cut(n_bytes, n_before):
    text = "a\u00e9\u65e5bc"
    assert cut_at_line(text, n_bytes, longest=99) == (text[:n_before], text[n_before:])


def test_a_line_that_is_too_long_is_cut():
    text = "title\n" + "x" * 100
    assert cut_at_line(text, 90, longest=99)[0] == "title\n"
    assert cut_at_line(text, 90, longest=50)[0] == text[:90]


class Parts(Documents):
    """A corpus of parts of documents."""

    def documents(self):
        yield from self.parts


def test_a_document_in_parts_goes_where_its_first_part_says():
    first = next(f"Part {i}." for i in range(999) if split_of(f"Part {i}.", 0.5) == "val")
    other = next(f"Part {i}." for i in range(999) if split_of(f"Part {i}.", 0.5) == "train")
    corpus = Parts(val_fraction=0.5)
    corpus.parts = [
        Document(None, first, ends=False),
        Document(None, other, ends=True),
        Document(None, other * 2, ends=True),
        Document(None, first, ends=True),
    ]
    documents = list(SplitDocuments(corpus, Watcher()))
    wanted = ["val", "val", split_of(other * 2, 0.5), "val"]
    assert [document.split for document in documents] == wanted


@pytest.mark.parametrize("boundary", range(1, 12))
def test_the_document_before_the_boundary_ends_there(boundary):
    corpus = Parts(val_fraction=0.5)
    corpus.boundary = lambda: boundary
    corpus.parts = [Document(None, part, ends=part == "ghij") for part in ("abc", "def", "ghij")]
    corpus.parts.append(Document(None, "kl"))
    documents = list(SplitDocuments(corpus, Watcher()))
    for split, wanted in (("train", "abcdefghijkl"[:boundary]), ("val", "abcdefghijkl"[boundary:])):
        assert "".join(d.text for d in documents if d.split == split) == wanted
        assert [d.ends for d in documents if d.split == split][-1]
    assert texts_of(corpus, "train")[0] == "abcdefghij"[:boundary]


def test_documents_with_a_split_keep_it_and_do_not_count():
    corpus = Parts(val_fraction=0.5)
    corpus.parts = [
        Document("val", "a" * 50),
        Document(None, "b" * 10),
        Document("train", "c" * 40),
    ]
    assert build_from(list, SplitDocuments(corpus, Watcher())) == [
        Document("val", "a" * 50),
        Document("train", "bbbbb"),
        Document("val", "bbbbb"),
        Document("train", "c" * 40),
    ]


def test_a_corpus_that_decides_nothing_is_refused():
    with pytest.raises(UserError, match="must have val_fraction, or give each document a split"):
        splits_of(["some text"], None)


def test_text_that_is_not_unicode_is_named():
    with pytest.raises(UserError, match=r"without lone surrogates, got U\+DC80 at position 3"):
        splits_of(["abc\udc80"], 0.5)
