"""The user's own files: documents, the start of the held-out text, and notes."""

import gzip
import json

import pytest

from data.parts import by_split, digest_of
from gptmini.data import corpus as corpora
from gptmini.data.corpora.text_corpus import TextCorpus
from gptmini.data.reading import skipped

# 57 letters of two bytes, and five characters of one: 119 bytes of UTF-8.
GREEK = "".join(chr(0x3B1 + i % 24) for i in range(57)) + "\r\nend"


@pytest.mark.parametrize(
    ("name", "encoding", "pack"),
    [
        ("a.rst", "utf-8", bytes),
        ("a.txt", "utf-8-sig", bytes),
        ("a.txt", "utf-16", bytes),
        ("a.txt", "utf-32", bytes),
        ("a.txt.gz", "utf-8", gzip.compress),
        ("a.txt", "iso8859_7", bytes),
    ],
)
def test_of_one_file_the_last_bytes_of_utf8_are_held_out(tmp_path, name, encoding, pack):
    (tmp_path / name).write_bytes(pack(GREEK.encode(encoding)))
    named = encoding if encoding == "iso8859_7" else "utf-8"
    corpus = TextCorpus(tmp_path / name, 0.1, encoding=named)

    assert corpus.boundary() == int(119 * 0.9)
    assert by_split(corpus) == {None: [GREEK]}


def test_of_several_documents_no_place_says_what_is_held_out(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("A text.|Another.")
    (tmp_path / "c.jsonl").write_text('{"text": "alone"}')
    one = tmp_path / "a.txt"
    assert TextCorpus(one, 0.1).boundary() is not None
    assert TextCorpus(tmp_path, 0.1).boundary() is None
    assert TextCorpus(one, 0.1, separator="|").boundary() is None
    assert TextCorpus(tmp_path / "c.jsonl", 0.1).boundary() is None
    assert TextCorpus(one, 0.1, val_path=tmp_path / "b.txt").boundary() is None


def test_documents_come_in_the_order_of_the_files_at_each_reading(tmp_path):
    (tmp_path / "b.txt").write_text("One.\n\n\n\nTwo.")
    (tmp_path / "a.jsonl").write_text('{"text": "Three."}\n{"text": "Four."}')
    # The separator is given with an escape.
    corpus = TextCorpus([tmp_path / "b.txt", tmp_path / "a.jsonl"], 0.1, separator=r"\n\n")
    for _ in range(2):
        assert by_split(corpus) == {None: ["One.", "Two.", "Three.", "Four."]}


def test_held_out_text_may_be_given(tmp_path):
    (tmp_path / "train.txt").write_text("To train on.|Too.")
    held_out = tmp_path / "held.jsonl"
    held_out.write_text('{"body": "To validate on."}')
    (tmp_path / ".linked.jsonl").symlink_to(held_out)
    linked = tmp_path / ".linked.jsonl"
    corpus = TextCorpus(tmp_path, 0.1, val_path=linked, separator="|", field="body")
    assert by_split(corpus) == {"train": ["To train on.", "Too."], "val": ["To validate on."]}
    assert corpus.notes() == [f"1 file was held out (also in data.val_path): {held_out}"]


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

    # The path of a file and an unused val_fraction do not change the identity.
    (tmp_path / "a.txt").rename(tmp_path / "z.txt")
    assert identity((str(tmp_path / "z.txt"), b)) == different[-1]
    assert identity((table,), 0.1, val_path=b) == identity((table,), 0.2, val_path=b)


def test_what_is_left_out_and_a_separator_that_stands_nowhere_are_told(tmp_path):
    (tmp_path / "text.txt").write_text("A text.")
    (tmp_path / "other.jsonl").write_text('{"text": "a|b"}')
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbf")
    for name in "abcd":
        (tmp_path / f"{name}.png").write_bytes(b"\x89PNG\0")
    corpus = TextCorpus(tmp_path, 0.1, separator="|")
    assert by_split(corpus) == {None: ["a|b", "A text."]}
    a, b, c, _ = sorted(tmp_path.glob("*.png"))
    assert corpus.notes() == [
        f"4 files were skipped (no readable text): {a}, {b}, {c}, and 1 more",
        f"1 file was skipped (contains no text): {tmp_path / 'marked.txt'}",
        "data.separator='|' never occurs; each plain text file is one document",
    ]


def test_records_that_are_left_out_are_counted_and_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(skipped, "MOST_LISTED", 7)
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f'{{"text": "one {i}"}}\n{{"text": {i}}}\n' for i in range(9)))
    corpus = TextCorpus(file, 0.5, on_error="skip")
    assert corpus.skipped() == ""
    for _ in range(2):  # a second reading counts from zero again
        assert len(by_split(corpus)[None]) == 9
        (note,) = corpus.notes()
        first = f"{file}, line 2 (byte 18): the field 'text' must be text, got 0"
        assert note.startswith("9 unreadable records")
        assert note.endswith(first)
        lines = corpus.skipped().splitlines()
        assert len(lines) == 8
        assert (lines[0], lines[-1]) == (first, "and 2 more")


def test_how_quotation_marks_are_read_is_part_of_the_identity_of_a_table(tmp_path):
    def added(name, quote):
        (tmp_path / name).touch()
        identity = TextCorpus(tmp_path / name, 0.5, quote=quote).identity(digest_of)
        ((_, _, _, *found),) = identity["files"]
        return found

    assert added("a.csv", None) == added("a.csv", True) == added("a.txt", True) == []
    assert added("a.csv", False) == added("a.tsv", None) == ["unquoted"]
    assert added("a.tsv", True) == ["quoted"]


def test_rows_that_may_have_become_one_value_are_told(tmp_path):
    rows = "".join(f"{i},row {i}\n" for i in range(9))
    (tmp_path / "a.csv").write_text(f'id,text\n10,"stray\n{rows}11,mark"\n')
    corpus = TextCorpus(tmp_path, 0.5)
    assert len(by_split(corpus)[None]) == 1
    (note,) = corpus.notes()
    assert note.startswith(f"{tmp_path / 'a.csv'}, line 2 (byte 8): ")


@pytest.mark.parametrize("n_val", [10, 40])
@pytest.mark.parametrize("enough", [50_000, 10**9])
def test_bytes_to_train_on_are_those_of_the_training_files(tmp_path, monkeypatch, n_val, enough):
    """The same holds if all files are read or only some. Files of val_path do not count, however large they are."""
    monkeypatch.setattr(corpora, "ENOUGH", enough)
    record = json.dumps({"text": "é" * 100}) + "\n"
    for i in range(20 + n_val):
        (tmp_path / f"{i:02}.jsonl").write_text(record * 30, encoding="utf-8")
    files = sorted(tmp_path.glob("*.jsonl"))
    corpus = TextCorpus(files[n_val:], 0.1, val_path=files[:n_val])

    n_bytes = corpus.bytes_to_train_on()
    # The estimate is wrong by the part of a file that was read ahead.
    assert n_bytes == pytest.approx(20 * 30 * 200, rel=0.1 if enough == 50_000 else 0)


@pytest.mark.parametrize("enough", [50_000, 10**9])
def test_bytes_to_train_on_leave_out_the_share_that_is_held_out(tmp_path, monkeypatch, enough):
    monkeypatch.setattr(corpora, "ENOUGH", enough)
    for i in range(20):
        (tmp_path / f"{i:02}.txt").write_text("x" * 6000)
    n_bytes = TextCorpus(tmp_path, 0.25).bytes_to_train_on()
    assert n_bytes == pytest.approx(20 * 6000 * 0.75, rel=0.1)
