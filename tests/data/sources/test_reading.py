"""The documents of files of every format, in pieces whose sizes are bounded."""

import bz2
import csv
import gzip
import json
import lzma
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptmini.data.sources import Reading, decoding, read_pieces, reading, records
from gptmini.tokenizer import SPLIT_PATTERN, BytePairTokenizer
from gptmini.user_error import UserError
from refusals import refused_keys

pyarrow = pytest.importorskip("pyarrow", reason="pip install 'gptmini[data]'")
from pyarrow import parquet  # noqa: E402

# Texts with what formats trip over: quotation marks, delimiters, line ends, characters of one to four bytes.
TEXTS = ["A text.", 'He said "no", twice.', "tab\tand, comma", "two\nlines\r\n", "é\u2028☃😀", " "]
PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def how(**changes):
    """A Reading with some fields changed."""
    fields = {"field": "text", "separator": None, "encoding": "utf-8", "on_error": "fail"}
    return Reading(**fields | changes)


def documents(file, skipped=None, **changes):
    """The documents of a file, each put together from its pieces."""
    texts = [""]
    for piece in read_pieces(file, how(**changes), (skipped if skipped is not None else []).append):
        texts[-1] += piece.text
        if piece.ends:
            texts.append("")
    assert texts.pop() == ""
    return texts


@pytest.fixture
def small(monkeypatch):
    """Pieces of eight characters at most, of runs that may be long, read in blocks of seven bytes."""
    monkeypatch.setattr(reading, "PIECE", 8)
    monkeypatch.setattr(decoding, "BLOCK", 7)


def as_jsonl(path):
    path.write_text("\n\n".join(json.dumps({"id": 1, "text": text}) for text in TEXTS))


def as_csv(path):
    with path.open("w", newline="") as file:
        delimiter = "\t" if path.suffix == ".tsv" else ","
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["id", "text"])
        writer.writerows([i, text] for i, text in enumerate(TEXTS))


def as_parquet(path):
    parquet.write_table(
        pyarrow.table({"id": range(len(TEXTS)), "text": TEXTS}), path, row_group_size=2
    )


WRITERS = {
    "a.jsonl": as_jsonl,
    "a.ndjson": as_jsonl,
    "a.csv": as_csv,
    "a.tsv": as_csv,
    "a.parquet": as_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
def test_records_give_the_texts_of_their_field(tmp_path, name):
    WRITERS[name](tmp_path / name)
    assert documents(tmp_path / name) == TEXTS


@pytest.mark.parametrize("ending", [*PACK, ".zst"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
def test_a_packed_file_holds_what_it_held_before(tmp_path, name, ending):
    plain = tmp_path / name
    if name == "a.txt":
        plain.write_text("".join(TEXTS), newline="")
    else:
        WRITERS[name](plain)

    packed = tmp_path / f"{name}{ending}"
    if ending == ".zst":
        with pyarrow.output_stream(str(packed), compression="zstd") as stream:
            stream.write(plain.read_bytes())
    else:
        packed.write_bytes(PACK[ending](plain.read_bytes()))
    assert documents(packed) == documents(plain) != []

    # Of two parts put behind each other, as tools write them, both are read.
    doubled = tmp_path / f"b.txt{ending}"
    doubled.write_bytes(2 * packed.read_bytes())
    assert documents(doubled) == [2 * plain.read_bytes().decode()]


@pytest.mark.parametrize("ending", [*PACK, ".zst"])
def test_a_packed_file_that_is_cut_short_or_damaged_is_refused(tmp_path, ending):
    data = bytes(range(256)) * 4000
    file = tmp_path / f"a.txt{ending}"
    if ending == ".zst":
        with pyarrow.output_stream(str(file), compression="zstd") as stream:
            stream.write(b"text " + data.hex().encode())
        whole = file.read_bytes()
    else:
        whole = PACK[ending](b"text " + data.hex().encode())

    for broken in (whole[: len(whole) // 2], whole[:-3], b"no archive"):
        file.write_bytes(broken)
        with pytest.raises(UserError, match=rf"a\.txt{ending} must be a whole {ending} file, got"):
            documents(file)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("separator", ["|", "<|endoftext|>", "ab", "aab"])
def test_a_separator_cuts_a_text_as_python_does(tmp_path, separator):
    text = f"one{separator}{separator} two{separator}a{separator}aa{separator}three ab" * 3
    (tmp_path / "a.txt").write_text(text)
    expected = [part for part in text.split(separator) if part]
    assert documents(tmp_path / "a.txt", separator=separator) == expected


@pytest.mark.usefixtures("small")
def test_pieces_are_short_and_end_before_white_space_that_follows_a_word(tmp_path):
    text = "A few words,\n\n  then   a-very-long-word and\tmore. " * 20
    (tmp_path / "a.txt").write_text(text)
    *first, last = read_pieces(tmp_path / "a.txt", how(), print)

    assert "".join(piece.text for piece in [*first, last]) == text
    assert [piece.ends for piece in first] == [False] * len(first)
    assert last.ends
    for piece, following in zip(first, [*first[1:], last], strict=True):
        assert not piece.text[-1].isspace()
        assert following.text[0] in " \n\t"
        assert len(piece.text) <= 8 or re.search(r"\S[ \n\t]", piece.text[:9]) is None


BPE = BytePairTokenizer(
    SPLIT_PATTERN, [bytes([i]) for i in range(256)] + [b" a", b"\n\n", b"  ", b" \n", b"ab"]
)


@pytest.mark.usefixtures("small")
@given(text=st.text(alphabet="ab1.' \n\r\t\u00a0\u2003\x1c\u0301字", max_size=60))
def test_encoding_pieces_gives_the_ids_of_the_whole_text(text):
    parts = [*((character, False) for character in text), ("", True)]
    pieces = list(reading.in_pieces(iter(parts), Path("a.txt")))
    ids = [token for piece in pieces for token in BPE.encode(piece.text)]
    assert ids == BPE.encode(text)


def test_lines_of_any_end_are_cut_at_their_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "PIECE", 1000)
    monkeypatch.setattr(reading, "LONGEST_RUN", 2000)
    for end in ("\r\n", "\t\n", " \n", "\n\n"):
        text = "".join(f"word{i}{end}" for i in range(2000))
        (tmp_path / "a.txt").write_bytes(text.encode())
        pieces = [piece.text for piece in read_pieces(tmp_path / "a.txt", how(), print)]
        assert "".join(pieces) == text
        assert all(900 < len(piece) <= 1000 for piece in pieces[:-1])
        assert all(piece.startswith(end) for piece in pieces[1:])


def test_a_run_without_white_space_is_refused_by_the_name_of_its_file(tmp_path, monkeypatch, small):
    monkeypatch.setattr(reading, "LONGEST_RUN", 50)
    (tmp_path / "a.txt").write_text("a " + 70 * "x")
    with pytest.raises(UserError, match=r"a\.txt must have a space or a line break .* begins ' ?x"):
        documents(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_text("a " + 40 * "x" + " b")
    assert documents(tmp_path / "a.txt") == ["a " + 40 * "x" + " b"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_says_the_encoding_and_is_no_part_of_the_text(tmp_path, encoding):
    text = "größer 😀 als " * 9
    (tmp_path / "a.txt").write_text(text, encoding=encoding)
    assert documents(tmp_path / "a.txt") == [text]
    (tmp_path / "a.jsonl").write_text('{"text": "groß"}\n', encoding=encoding)
    assert documents(tmp_path / "a.jsonl") == ["groß"]


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16-le", "shift_jis", "koi8_r"])
def test_another_encoding_is_read_where_the_user_names_it(tmp_path, encoding):
    text = {"cp1252": "größer", "shift_jis": "日本", "koi8_r": "привет"}.get(encoding, "größer")
    for name, content in (
        ("a.txt", text),
        ("a.jsonl", f'{{"text": "{text}"}}\n'),
        ("a.csv", f"text\n{text}\n"),
    ):
        (tmp_path / name).write_text(content, encoding=encoding)
        assert documents(tmp_path / name, encoding=encoding) == [text]


def test_what_is_not_in_its_encoding_is_told_with_its_offset_and_the_likely_encoding(tmp_path):
    text = "Ein Satz über Grüße, Äpfel und Öfen. " * 60_000
    data = b"x" * 2**20 + text.encode("cp1252")
    (tmp_path / "a.txt").write_bytes(data)
    offset = data.index(b"\xfc")
    said = rf"a\.txt must be UTF-8, got byte 0xfc at offset {offset:,}; probably it is cp1252 \('Ein Satz über "
    with pytest.raises(UserError, match=said):
        documents(tmp_path / "a.txt")

    (tmp_path / "b.txt").write_text("hello " * 30, encoding="utf-16-le")
    with pytest.raises(
        UserError, match=r"got a zero byte at offset 1; probably it is UTF-16, which"
    ):
        documents(tmp_path / "b.txt")


# Lines of a file of JSON records that cannot be read, each with what is said of it.
BAD_RECORDS = {
    '{"text": 3}': "must have text in the field text, got 3",
    '{"text": null}': "must have text in the field text, got None",
    '{"title": "t", "body": "b"}': "must have the field text, as data.field says, got the fields title, body",
    '["text"]': "must be a record with the field text, got",
    '{"text": "a': "must be a JSON record, got",
    "nonsense": "must be a JSON record, got",
    '{"text": "\\ud800"}': "must be Unicode, got half of a surrogate pair in the field text",
    "[" * 5000: "must be a JSON record, got",
}


@pytest.mark.parametrize("line", BAD_RECORDS)
def test_a_bad_record_is_told_with_its_line_and_offset_or_left_out(tmp_path, line):
    file = tmp_path / "a.jsonl"
    file.write_text(f'{{"text": "é"}}\n\n{line}\n{{"text": "last"}}\n')
    said = f"{file}, line 3 (byte 16), {BAD_RECORDS[line]}"
    with pytest.raises(UserError) as caught:
        documents(file)
    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith("; data.on_error is fail, skip leaves such records out")

    skipped = []
    assert documents(file, skipped, on_error="skip") == ["é", "last"]
    assert len(skipped) == 1
    assert skipped[0].startswith(said)


def test_a_record_that_is_too_long_is_bad(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LONGEST_RECORD", 100)
    file = tmp_path / "a.jsonl"
    file.write_text(f'{{"text": "a"}}\n{{"text": "{"x" * 350}"}}\n{{"text": "b"}}')
    skipped = []
    assert documents(file, skipped, on_error="skip") == ["a", "b"]
    assert skipped == [f"{file}, line 2 (byte 14), must hold at most 100 bytes"]


def test_a_field_may_lie_in_a_record_of_the_record(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": {"b": "inner"}}')
    assert documents(tmp_path / "a.jsonl", field="a.b") == ["inner"]
    parquet.write_table(pyarrow.table({"a": [{"b": "inner"}]}), tmp_path / "a.parquet")
    assert documents(tmp_path / "a.parquet", field="a.b") == ["inner"]


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_column_that_is_not_there_names_those_that_are(tmp_path, name):
    WRITERS[name](tmp_path / name)
    with pytest.raises(UserError, match=rf"{name} must .*id, text"):
        documents(tmp_path / name, field="body")


def test_a_row_of_csv_with_too_few_values_is_bad(tmp_path):
    (tmp_path / "a.csv").write_text("id,text\n1,one\n2\n3,three\n")
    with pytest.raises(
        UserError, match=r"row 3, must have 2 values, got 1; data\.on_error is fail"
    ):
        documents(tmp_path / "a.csv")
    skipped = []
    assert documents(tmp_path / "a.csv", skipped, on_error="skip") == ["one", "three"]
    assert len(skipped) == 1


def test_bytes_that_are_no_utf8_in_a_column_of_text_are_bad(tmp_path):
    texts = pyarrow.array([b"good", b"b\xffd", b"good too"], type=pyarrow.binary())
    # The format does not keep a writer from it, and pyarrow can be told to take bytes for text unseen.
    column = pyarrow.Array.from_buffers(pyarrow.string(), len(texts), texts.buffers())
    parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet, row 2, must be UTF-8 in the field text"):
        documents(tmp_path / "a.parquet")
    assert documents(tmp_path / "a.parquet", on_error="skip") == ["good", "good too"]


def test_a_packed_parquet_file_is_refused_with_the_remedy(tmp_path):
    as_parquet(tmp_path / "a.parquet")
    packed = tmp_path / "a.parquet.gz"
    packed.write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    with pytest.raises(
        UserError, match=r"a\.parquet\.gz must be a \.parquet file; unpack it first"
    ):
        documents(packed)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_table_that_is_none_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x00PAR1 no table at all")
    with pytest.raises(UserError, match=rf"{name} must (be a whole|have the field)"):
        documents(tmp_path / name)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("field", ""),
        ("separator", ""),
        ("encoding", "utf-9"),
        ("encoding", "base64"),
        ("on_error", "pass"),
    ],
)
def test_a_reading_that_does_not_fit_is_refused(key, value):
    assert refused_keys(how, **{key: value}) == {key}


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.txt.zst"])
def test_what_needs_pyarrow_says_how_to_install_it(tmp_path, monkeypatch, name):
    (tmp_path / name).write_text("text\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'gptmini\[data\]'"):
        documents(tmp_path / name)
