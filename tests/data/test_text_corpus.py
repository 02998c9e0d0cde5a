"""The user's own files: what is a document, which split it goes to, and what is refused."""

import gzip
import hashlib
import math
import os
import re
from pathlib import Path

import pytest

from gptmini.data.text_corpus import TextCorpus
from gptmini.user_error import UserError
from refusals import refused_keys
from toys import texts_of


def first_byte(text):
    return hashlib.sha256(text.encode()).digest()[0]


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


def test_one_file_splits_by_position(tmp_path):
    # 62 characters of more bytes, with a line end that must stay as it is.
    text = "".join(chr(0x3B1 + i % 24) for i in range(57)) + "\r\nend"
    (tmp_path / "a.rst").write_bytes(text.encode())
    corpus = TextCorpus(str(tmp_path / "a.rst"), 0.1)

    assert texts_of(corpus, "train") == [text[:55]]  # int(62 * 0.9)
    assert texts_of(corpus, "val") == [text[55:]]


@pytest.fixture
def folder(tmp_path):
    """Twenty texts in three folders, .txt and .md in turn, and a file that is no text."""
    for i in range(20):
        suffix = "md" if i % 2 else "txt"
        path = tmp_path / "texts" / f"part{i % 3}" / f"{i:02}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"Text {i}.")
    (tmp_path / "texts" / "picture.png").write_bytes(b"\x89PNG\r\n\x00")
    (tmp_path / "texts" / ".hidden.txt").write_text("not taken")
    return tmp_path / "texts"


@pytest.mark.parametrize("pattern", ["", "part*/*.txt", "**/*.md", "part1"])
def test_several_files_split_by_the_hash_of_their_text(folder, monkeypatch, pattern):
    monkeypatch.chdir(folder.parent)
    wanted = {
        "": range(20),
        "part*/*.txt": range(0, 20, 2),
        "**/*.md": range(1, 20, 2),
        "part1": range(1, 20, 3),
    }
    in_order = [f"Text {i}." for i in sorted(wanted[pattern], key=lambda i: (i % 3, i))]

    train = [text for text in in_order if first_byte(text) >= 102]  # 0.4 of 256
    val = [text for text in in_order if first_byte(text) < 102]

    for path in (folder / pattern, Path("texts") / pattern):  # absolute and relative
        corpus = TextCorpus(str(path), 0.4)
        assert texts_of(corpus, "train") == train
        assert texts_of(corpus, "val") == val


def test_text_identity_changes_with_text_names_and_split(folder):
    def identity(val_fraction=0.4):
        return TextCorpus(str(folder), val_fraction).identity()

    before = identity()
    another_split = identity(0.3)
    (folder / "part0" / "00.txt").write_text("Text 0!")
    another_text = identity()
    (folder / "part0" / "00.txt").rename(folder / "part0" / "99.txt")
    another_name = identity()

    different = [before, another_split, another_text, another_name]
    assert all(one not in different[:i] for i, one in enumerate(different))
    assert identity() == another_name


@pytest.mark.parametrize(
    "name", ["missing.txt", "missing/*.txt", "*.nothing", "empty_folder", "a**.txt"]
)
def test_a_path_that_matches_no_file_is_refused(tmp_path, name):
    (tmp_path / "empty_folder").mkdir()
    with pytest.raises(ValueError, match=r"must (be|hold) .*got") as caught:
        TextCorpus(str(tmp_path / name), 0.1)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"file\.txt must hold text, got none"),
        (b"abc\xff\xfe", r"file\.txt must be UTF-8, got byte 0xff at offset 3"),
        # The offset is in bytes, not in characters.
        (
            b"hello\0there",
            r"file\.txt must be UTF-8, got a zero byte at offset 5; convert it to text first",
        ),
        (b"\xc3\xa9t\xe9", r"file\.txt must be UTF-8, got byte 0xe9 at offset 3"),
    ],
)
def test_a_file_that_is_empty_or_not_utf8_is_refused(tmp_path, data, message):
    (tmp_path / "file.txt").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        texts_of(TextCorpus(str(tmp_path / "file.txt"), 0.1), "train")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("a.json", r"write a record on each line of a \.jsonl file, or rename it to \.txt"),
        ("a.zip", "unpack it first"),
        ("a.tar.gz", "unpack it first"),
        ("a.pdf", r"convert it to a \.txt file"),
        ("a.DOCX", r"convert it to a \.txt file"),
    ],
)
def test_a_file_that_is_no_plain_text_is_refused_with_what_to_do(tmp_path, name, remedy):
    (tmp_path / name).write_text("Text enough.\n")
    message = rf"data\.path must name text, got .*{name}; .*{remedy}"
    for path in (tmp_path / name, tmp_path / "*"):
        with pytest.raises(UserError, match=message):
            TextCorpus(path, 0.1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_a_pipe_is_refused_as_what_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(
        UserError, match=r"must be a regular file or a folder, got .*pipe\.txt, which is"
    ):
        TextCorpus(tmp_path / "pipe.txt", 0.1)


def test_a_folder_gives_its_texts_and_says_what_it_leaves_out(folder):
    corpus = TextCorpus(folder, 0.4)
    assert len(corpus.files) == 20
    assert corpus.notes == [
        f"1 file was left out for want of text that can be read: {folder / 'picture.png'}"
    ]

    (folder / "pictures").mkdir()
    (folder / "picture.png").rename(folder / "pictures" / "picture.png")
    with pytest.raises(UserError, match=r"must hold files of text, got the folder .* with none"):
        TextCorpus(folder / "pictures", 0.1)


def test_a_folder_gives_nothing_of_what_gptmini_wrote_into_it(folder):
    for name, files in (
        ("runs/a/1", ["config.yaml", "train.log", "metrics.jsonl"]),
        ("data/b", []),
    ):
        written = folder / name
        written.mkdir(parents=True)
        for file in files:
            (written / file).write_text("version: 0.3.0 # of gptmini, which wrote this run\n")
    # A folder of the user's own with such names is text.
    (folder / "runs" / "config.yaml").write_text("version: 1\n")
    (folder / "runs" / "config.yaml").rename(folder / "part0" / "config.yaml")
    (folder / "data/b/meta.json").write_text('{"format": 2, "fingerprint": ""}')
    (folder / "data/b/skipped.txt").write_text("a record")
    (folder / "data/b/train.bin").write_bytes(b"ids")

    corpus = TextCorpus(folder, 0.4)
    assert len(corpus.files) == 21
    assert corpus.notes[1:] == [
        f"2 folders were left out as runs or prepared texts of gptmini: {folder / 'data/b'}, {folder / 'runs/a/1'}"
    ]
    assert (
        len(TextCorpus(folder / "**" / "*", 0.4).files) == 22
    )  # the picture is taken for text there
    assert len(TextCorpus(folder / "data/b/skipped.txt", 0.4).files) == 1  # a file that is named

    for path in ("data/b", "data/b/*", "data/b/train.bin"):
        with pytest.raises(UserError, match=r"must not be what gptmini has prepared.*data=mixture"):
            TextCorpus(folder / path, 0.4)
    with pytest.raises(UserError, match=r"got \S+/runs/a/1, which is a run of gptmini"):
        TextCorpus(folder / "runs/a/1", 0.4)
    with pytest.raises(UserError, match=r"with none, and with \S+/runs/a/1, which gptmini wrote"):
        TextCorpus(folder / "runs", 0.4)


def test_several_paths_are_taken_in_their_order_and_each_file_once(folder):
    first = str(folder / "part1" / "04.txt")
    corpus = TextCorpus([first, str(folder / "part0" / "*.txt"), first], 0.4)
    assert corpus.files[0] == folder / "part1" / "04.txt"
    assert corpus.files[1:] == sorted((folder / "part0").glob("*.txt"))


def test_held_out_text_may_be_given(tmp_path):
    (tmp_path / "train.txt").write_text("To train on.|Too.")
    (tmp_path / "held.jsonl").write_text('{"body": "To validate on."}')
    corpus = TextCorpus(
        tmp_path / "train.txt", 0.1, val_path=tmp_path / "held.jsonl", separator="|", field="body"
    )
    assert texts_of(corpus, "train") == ["To train on.", "Too."]
    assert texts_of(corpus, "val") == ["To validate on."]

    before = corpus.identity()
    (tmp_path / "held.jsonl").write_text('{"body": "Other."}')
    assert corpus.identity() != before


def test_a_file_of_several_names_is_taken_once(folder):
    (folder / "link.txt").symlink_to(folder / "part0" / "00.txt")
    (folder / "hard.txt").hardlink_to(folder / "part0" / "00.txt")
    assert len(TextCorpus(folder, 0.4).files) == 20
    several = [str(folder / "part0" / "00.txt"), str(folder / "part1" / ".." / "part0" / "00.txt")]
    assert len(TextCorpus(several, 0.4).files) == 1


def test_a_star_stands_for_no_hidden_name(folder):
    assert len(TextCorpus(folder / "**" / "*.txt", 0.4).files) == 10
    assert len(TextCorpus(folder / ".*.txt", 0.4).files) == 1


def test_a_file_without_text_is_told(folder):
    (folder / "empty.txt.gz").write_bytes(gzip.compress(b""))
    corpus = TextCorpus(folder, 0.4)
    assert len(list(corpus.documents())) == 20
    assert f"1 file was found to hold no text: {folder / 'empty.txt.gz'}" in corpus.notes


def test_held_out_files_are_not_trained_on(folder):
    held_out = folder.parent / "linked.txt"
    held_out.hardlink_to(folder / "part0" / "00.txt")
    corpus = TextCorpus(folder, 0.4, val_path=held_out)
    assert len(corpus.files) == 19
    assert corpus.val_files == [held_out]
    assert "1 file was held out, because data.val_path names it too" in corpus.notes

    with pytest.raises(
        UserError, match=r"^data\.path must name more than the files of data\.val_path"
    ):
        TextCorpus(held_out, 0.4, val_path=folder)


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
    assert corpus.notes == ([] if note is None else [note])


def test_a_separator_may_be_typed_with_an_escape(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"Line {i}\n" for i in range(99)))
    corpus = TextCorpus(tmp_path / "a.txt", 0.5, separator=r"\n")
    assert sorted(document.text for document in corpus.documents()) == sorted(
        f"Line {i}" for i in range(99)
    )


def test_records_that_are_left_out_are_counted(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f'{{"text": "one {i}"}}\n{{"text": {i}}}\n' for i in range(9)))
    corpus = TextCorpus(file, 0.5, on_error="skip")
    for _ in range(2):
        assert len(list(corpus.documents())) == 9
        (note,) = corpus.notes
        said = f"9 records were left out that cannot be read; the first: {file}, line 2 (byte 18), "
        assert note.startswith(said)


@pytest.mark.parametrize(
    "changes",
    [{"separator": "|"}, {"encoding": "cp1252"}, {"on_error": "skip"}, {"val_fraction": 0.2}],
)
def test_another_way_of_reading_is_another_identity(tmp_path, changes):
    (tmp_path / "a.txt").write_text("A text.|Another.")
    plain = TextCorpus(tmp_path / "a.txt", 0.1).identity()
    assert TextCorpus(tmp_path / "a.txt", **{"val_fraction": 0.1} | changes).identity() != plain
    assert TextCorpus(tmp_path / "a.txt", 0.1, field="unused").identity() == plain


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path):
    text = "Größe \ufeff 1.\r\n" * 20
    plain = tmp_path / "plain.txt"
    plain.write_bytes(text.encode("utf-8"))
    marked = tmp_path / "marked.txt"
    marked.write_bytes(text.encode("utf-8-sig"))  # Python's own codec with the mark
    assert marked.stat().st_size == plain.stat().st_size + 3

    corpora = [TextCorpus(path, 0.1) for path in (plain, marked)]
    assert [list(corpus.documents()) for corpus in corpora] == 2 * [list(corpora[0].documents())]
    assert corpora[0].identity() == corpora[1].identity()
    # The identity of a text without the mark is what it always was, so that its prepared folder stays valid.
    assert corpora[0].identity()["files"] == [hashlib.sha256(plain.read_bytes()).hexdigest()]

    marked.write_bytes("".encode("utf-8-sig"))
    with pytest.raises(UserError, match="must hold text, got none"):
        list(TextCorpus(marked, 0.1).documents())


@pytest.mark.parametrize(
    ("texts", "note"),
    [
        (["a\r\nb\nc\n" * 9], r"9 line ends of the kind \\r\\n and 18 of the kind \\n; both are"),
        (["a\r\n" * 9], None),
        (["a\nb\r" * 9], None),
        (
            ["a\n" * 9, "b\r\n" * 4],
            r"4 line ends of the kind \\r\\n and 9 of the kind \\n; both are",
        ),
    ],
)
def test_a_text_that_mixes_line_ends_keeps_them_and_says_so(tmp_path, texts, note):
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_bytes(text.encode())
    corpus = TextCorpus(tmp_path, 0.5)

    read = []
    for _ in range(2):
        read += [document.text for document in corpus.documents()]
    if len(texts) == 1:
        assert "".join(read) == 2 * texts[0]
    assert len(corpus.notes) == (note is not None)
    assert note is None or re.search(note, corpus.notes[0])
