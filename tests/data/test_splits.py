"""Held-out documents: near the wanted fraction for any documents."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.parts import first_byte, whole
from gptmini.console.progress import Watcher
from gptmini.data import Document
from gptmini.data.prepared.splits import SplitDocuments, build_from
from toys import Documents


class Parts(Documents):
    """A corpus of given documents or parts of them, with a given boundary."""

    def __init__(self, parts, val_fraction, boundary=None):
        super().__init__(val_fraction=val_fraction)
        self.parts = parts
        self.boundary = lambda: boundary

    def documents(self):
        yield from self.parts


def splits_of(texts, val_fraction, boundary=None):
    """Return the documents of both splits and the notes. The texts may be parts of documents."""
    parts = [Document(None, text) if isinstance(text, str) else text for text in texts]
    notes = []
    watcher = Watcher(on_note=notes.append)
    found = build_from(list, SplitDocuments(Parts(parts, val_fraction, boundary), watcher))
    train, val = ([part for part in found if part.split == split] for split in ("train", "val"))
    assert len(train) + len(val) == len(found)
    return whole(train), whole(val), notes


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_a_few_documents_are_held_out_in_about_the_wanted_share(n, fraction):
    texts = [f"{i} and more text, " * (300 + i) for i in range(n)]
    train, val, _ = splits_of(texts, fraction)
    share = len("".join(val)) / len("".join(texts))
    assert abs(share - fraction) <= fraction / 2
    assert "".join(sorted(train + val)).count(",") == "".join(texts).count(",")


@given(
    texts=st.lists(st.text("ab\u00e9\n", min_size=2, max_size=9), min_size=1, max_size=5),
    ends=st.lists(st.booleans(), min_size=5, max_size=5),
    data=st.data(),
)
def test_a_boundary_in_any_part_ends_the_training_text_there_or_before_its_line(texts, ends, data):
    text = "".join(texts).encode()
    boundary = data.draw(st.integers(1, len(text) - 1))
    parts = [Document(None, part, end) for part, end in zip(texts, ends, strict=False)]
    parts[-1] = parts[-1]._replace(ends=True)

    train, val, notes = splits_of(parts, 0.5, boundary)
    assert "".join(train + val).encode() == text
    assert notes == []
    place = len("".join(train).encode())
    assert b"\n" not in text[place:boundary]
    if place < boundary:
        assert text[place - 1 : place] == b"\n"
    else:  # a character of two bytes is not cut
        assert place == boundary + (text[boundary] & 0xC0 == 0x80)


def test_a_document_in_parts_goes_where_its_first_part_says():
    held_out = next(text for text in map(str, range(999)) if first_byte(text) < 128)
    other = next(text for text in map(str, range(999)) if first_byte(text) >= 128)
    parts = [
        Document(None, held_out, ends=False),
        Document(None, other),
        Document(None, other),
        Document(None, held_out),
    ]
    documents = list(SplitDocuments(Parts(parts, 0.5), Watcher()))
    assert [document.split for document in documents] == ["val", "val", "train", "val"]
