"""The user's own files: what is a document, where the held-out text begins, and what is said of the text."""

import gzip
import hashlib
import math

import pytest

from gptmini.data import opening, readers
from gptmini.data.text_corpus import TextCorpus
from gptmini.user_error import UserError
from refusals import refused_keys


def digest_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def documents(corpus):
    """Split and text of each document, put together from its parts."""
    found = []
    parts = []
    for document in corpus.documents():
        parts.append(document.text)
        if document.ends:
            found.append((document.split, "".join(parts)))
            parts = []
    assert not parts
    return found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("path", 5),
        ("path", [1, 2]),
        ("val_path", ("a.txt",)),
        ("val_fraction", 0),
        ("val_fraction", 1),
        ("val_fraction", math.nan),
        ("val_fraction", "0.1"),
        ("val_fraction", None),
        ("name", "../evil"),
        ("field", ""),
        ("separator", 7),
        ("encoding", "utf-9"),
        ("on_error", "pass"),
        ("filed", "text"),
    ],
)
def test_an_argument_of_a_wrong_type_or_range_is_refused_by_its_key(tmp_path, key, value):
    (tmp_path / "a.txt").write_text("text")
    arguments = {"path": str(tmp_path / "a.txt"), "val_fraction": 0.1}
    assert refused_keys(TextCorpus, **arguments | {key: value}) == {key}


GREEK = "".join(chr(0x3B1 + i % 24) for i in range(57)) + "\r\nend"


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.999])
@pytest.mark.parametrize(
    ("name", "encoding", "pack"),
    [
        ("a.rst", "utf-8", bytes),
        ("a.txt", "utf-8-sig", bytes),
        ("a.txt", "utf-16", bytes),
        ("a.txt.gz", "utf-8", gzip.compress),
        ("a.txt.gz", "utf-16", gzip.compress),
        ("a.txt", "iso8859_7", bytes),
    ],
)
def test_of_one_file_the_last_bytes_of_utf8_are_held_out(tmp_path, name, encoding, pack, fraction):
    (tmp_path / name).write_bytes(pack(GREEK.encode(encoding)))
    named = encoding if encoding == "iso8859_7" else "utf-8"
    corpus = TextCorpus(tmp_path / name, fraction, encoding=named)

    # 57 letters of two bytes, and five characters of one.
    assert corpus.boundary() == int(119 * (1 - fraction))
    assert documents(corpus) == [(None, GREEK)]
    assert corpus.val_fraction == fraction


def test_of_other_texts_no_place_says_what_is_held_out(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("A text.|Another.")
    (tmp_path / "c.jsonl").write_text('{"text": "alone"}')
    one = tmp_path / "a.txt"
    assert TextCorpus(tmp_path, 0.1).boundary() is None
    assert TextCorpus(one, 0.1, separator="|").boundary() is None
    assert TextCorpus(tmp_path / "c.jsonl", 0.1).boundary() is None
    given = TextCorpus(one, 0.1, val_path=tmp_path / "b.txt")
    assert given.boundary() is None
    assert given.val_fraction is None
    assert TextCorpus(one, 0.1).boundary() is not None


def test_documents_come_in_the_order_of_the_files(tmp_path):
    (tmp_path / "b.txt").write_text("One.||Two.")
    (tmp_path / "a.jsonl").write_text('{"text": "Three."}\n{"text": "Four."}')
    paths = [tmp_path / "b.txt", tmp_path / "a.jsonl"]
    texts = ["One.", "Two.", "Three.", "Four."]
    corpus = TextCorpus(paths, 0.1, separator="|")
    for _ in range(2):
        assert documents(corpus) == [(None, text) for text in texts]


def test_the_identity_changes_with_text_order_endings_and_every_key(tmp_path):
    (tmp_path / "a.txt").write_text("A text.|Another.")
    (tmp_path / "b.txt").write_text("A third.")
    (tmp_path / "b.csv").write_text("A third.")
    a, b, table = (str(tmp_path / name) for name in ("a.txt", "b.txt", "b.csv"))

    def identity(path=(a, b), val_fraction=0.1, **changes):
        return TextCorpus([*path], val_fraction, **changes).identity(digest_of)

    different = [
        identity(),
        identity((b, a)),
        identity((a, table)),
        identity((a,)),
        identity((a,), val_path=b),
        identity((a,), val_path=table),
        identity(val_fraction=0.2),
        identity(name="other"),
        identity(field="body"),
        identity(separator="|"),
        identity(encoding="cp1252"),
        identity(on_error="skip"),
    ]
    (tmp_path / "a.txt").write_text("A text.|Another!")
    different.append(identity())
    assert all(one not in different[:i] for i, one in enumerate(different))

    # Neither the place of a file nor a share that is not held out makes another text.
    (tmp_path / "a.txt").rename(tmp_path / "z.txt")
    assert identity((str(tmp_path / "z.txt"), b)) == different[-1]
    shares = (0.1, 0.2)
    assert len({str(identity((table,), share, val_path=b)) for share in shares}) == 1


def test_a_text_is_told_how_far_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "BLOCK", 2**10)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"One text. " * 99))
    (tmp_path / "b.jsonl").write_text('{"text": "Two."}\n' * 5_000)
    sizes = [path.stat().st_size for path in (tmp_path / "a.txt.gz", tmp_path / "b.jsonl")]
    corpus = TextCorpus(tmp_path, 0.1)
    assert corpus.share_read() == 0
    shares = [corpus.share_read() for _ in corpus.documents()]
    assert shares[0] == sizes[0] / sum(sizes)
    assert shares == sorted(shares)
    assert 0.3 < shares[2_000] < 1
    assert corpus.share_read() == 1


def test_what_is_left_out_is_counted_and_named(tmp_path):
    (tmp_path / "text.txt").write_text("A text.")
    for name in ("a", "b", "c", "d"):
        (tmp_path / f"{name}.png").write_bytes(b"\x89PNG\0")
    said = "left out for want of text that can be read:"
    a, b, c, d = sorted(tmp_path.glob("*.png"))
    notes = TextCorpus(tmp_path, 0.1).notes()
    assert notes == [f"4 files were {said} {a}, {b}, {c}, and 1 more"]
    d.unlink()
    assert TextCorpus(tmp_path, 0.1).notes() == [f"3 files were {said} {a}, {b}, {c}"]
    a.unlink()
    b.unlink()
    assert TextCorpus(tmp_path, 0.1).notes() == [f"1 file was {said} {c}"]


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_a_text_of_nothing_is_refused_and_a_file_of_nothing_is_told(tmp_path, data):
    empty = tmp_path / "empty.txt"
    empty.write_bytes(data)
    corpus = TextCorpus(empty, 0.1)
    assert corpus.boundary() == 0
    with pytest.raises(UserError, match=r"empty\.txt must hold text, got none"):
        list(corpus.documents())

    (tmp_path / "text.txt").write_text("A text.")
    corpus = TextCorpus([str(tmp_path / "text.txt"), str(empty)], 0.1)
    assert documents(corpus) == [(None, "A text.")]
    assert corpus.notes() == [f"1 file was found to hold no text: {empty}"]
    for path, val_path in (("text.txt", "empty.txt"), ("empty.txt", "text.txt")):
        corpus = TextCorpus(tmp_path / path, 0.1, val_path=tmp_path / val_path)
        with pytest.raises(UserError, match=r"empty\.txt must hold text, got none"):
            list(corpus.documents())


def test_held_out_text_may_be_given(tmp_path):
    (tmp_path / "train.txt").write_text("To train on.|Too.")
    (tmp_path / "held.jsonl").write_text('{"body": "To validate on."}')
    corpus = TextCorpus(
        tmp_path, 0.1, val_path=tmp_path / "held.jsonl", separator="|", field="body"
    )
    assert documents(corpus) == [
        ("train", "To train on."),
        ("train", "Too."),
        ("val", "To validate on."),
    ]
    assert corpus.notes() == [
        f"1 file was held out, being named by data.val_path too: {tmp_path / 'held.jsonl'}"
    ]


@pytest.mark.parametrize(
    ("texts", "note"),
    [
        (["one|two", "three"], None),
        (["one|", "two"], None),
        (
            ["one", "two"],
            "data.separator='|' stands in no file of plain text, so that each is one document",
        ),
    ],
)
def test_a_separator_that_does_not_occur_is_told(tmp_path, texts, note):
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text)
    (tmp_path / "other.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    corpus = TextCorpus(tmp_path, 0.4, separator="|")
    list(corpus.documents())
    assert corpus.notes() == ([] if note is None else [note])


def test_a_separator_may_be_typed_with_an_escape(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"Line {i}\n" for i in range(99)))
    corpus = TextCorpus(tmp_path / "a.txt", 0.5, separator=r"\n")
    assert sorted(document.text for document in corpus.documents()) == sorted(
        f"Line {i}" for i in range(99)
    )


def test_records_that_are_left_out_are_counted_and_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MOST_LISTED", 7)
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f'{{"text": "one {i}"}}\n{{"text": {i}}}\n' for i in range(9)))
    corpus = TextCorpus(file, 0.5, on_error="skip")
    assert corpus.skipped() == ""
    for _ in range(2):
        assert len(documents(corpus)) == 9
        (note,) = corpus.notes()
        first = f"{file}, line 2 (byte 18), must have text in the field text, got 0"
        assert note == f"9 records were left out that cannot be read; the first: {first}"
        *lines, last = corpus.skipped().splitlines()
        assert lines[0] == first
        assert len(lines) == 7
        assert last == "and 2 more"


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path):
    text = "Größe \ufeff 1.\r\n" * 20
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):  # Python writes the mark in the last two
        file = tmp_path / f"{encoding}.txt"
        file.write_bytes(text.encode(encoding))
        assert documents(TextCorpus(file, 0.1)) == [(None, text)]
