"""The documents of files of every format, in pieces whose sizes are bounded."""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptmini.data import opening, readers
from gptmini.data.readers import Piece, Reader, in_pieces
from gptmini.tokenizer import SPLIT_PATTERN, BytePairTokenizer
from gptmini.user_error import UserError

pyarrow = pytest.importorskip("pyarrow", reason="pip install 'gptmini[data]'")
from pyarrow import parquet  # noqa: E402

# Texts with what formats trip over: quotation marks, delimiters, line ends, characters of one to four bytes.
TEXTS = ["A text.", 'He said "no", twice.', "tab\tand, comma", "two\nlines\r\n", "é\u2028☃😀", " "]
PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def documents(file, reader=None, **how):
    """The documents of a file, each put together from its pieces."""
    texts = [""]
    for piece in (reader or Reader(**how)).pieces(file):
        texts[-1] += piece.text
        if piece.ends:
            texts.append("")
    assert texts.pop() == ""
    return texts


def skipping(file, **how):
    """The documents of a file whose bad records are left out, and what is said of these."""
    reader = Reader(on_error="skip", **how)
    texts = documents(file, reader)
    assert reader.n_skipped == len(reader.skipped)
    return texts, reader.skipped


@pytest.fixture
def small(monkeypatch):
    """Pieces of eight characters at most, of runs that may be long, read in blocks of seven bytes."""
    monkeypatch.setattr(readers, "PIECE", 8)
    monkeypatch.setattr(opening, "BLOCK", 7)


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
    *first, last = Reader().pieces(tmp_path / "a.txt")

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
    parts = [*(Piece(character, ends=False) for character in text), Piece("", ends=True)]
    pieces = list(in_pieces(iter(parts), Path("a.txt")))
    ids = [token for piece in pieces for token in BPE.encode(piece.text)]
    assert ids == BPE.encode(text)


def test_lines_of_any_end_are_cut_at_their_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "PIECE", 1000)
    monkeypatch.setattr(readers, "LONGEST_RUN", 2000)
    for end in ("\r\n", "\t\n", " \n", "\n\n"):
        text = "".join(f"word{i}{end}" for i in range(2000))
        (tmp_path / "a.txt").write_bytes(text.encode())
        pieces = [piece.text for piece in Reader().pieces(tmp_path / "a.txt")]
        assert "".join(pieces) == text
        assert all(900 < len(piece) <= 1000 for piece in pieces[:-1])
        assert all(piece.startswith(end) for piece in pieces[1:])


def test_a_run_without_white_space_is_refused_by_the_name_of_its_file(tmp_path, monkeypatch, small):
    monkeypatch.setattr(readers, "LONGEST_RUN", 50)
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


def test_what_is_not_in_its_encoding_is_told_with_its_offset_and_line(tmp_path):
    text = "Ein Satz \u00fcber Gr\u00fc\u00dfe, \u00c4pfel und \u00d6fen. " * 60_000
    data = b"x\n" * 2**19 + b"\n" + text.encode("cp1252")
    (tmp_path / "a.txt").write_bytes(data)
    offset = data.index(b"\xfc")
    said = rf"a\.txt must be UTF-8, got byte 0xfc at offset {offset:,}, in line 524,290; data\.encoding names"
    with pytest.raises(UserError, match=said):
        documents(tmp_path / "a.txt")

    (tmp_path / "b.txt").write_text("hello " * 30, encoding="utf-16-le")
    with pytest.raises(UserError, match=r"got byte 0x00 at offset 1, in line 1; data\.encoding"):
        documents(tmp_path / "b.txt")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "shift_jis"])
@given(text=st.text(alphabet="ab\n\r\u65e5\u672c", max_size=40), wrong=st.integers(0, 40))
def test_the_offset_of_a_wrong_byte_is_that_of_pythons_own_decoder(
    tmp_path_factory, encoding, text, wrong
):
    file = tmp_path_factory.mktemp("wrong") / "a.txt"
    data = text[:wrong].encode(encoding) + b"\xff\xdf" + text[wrong:].encode(encoding)
    file.write_bytes(data)
    try:
        expected = [data.decode(encoding)]
    except UnicodeDecodeError as error:
        line = 1 + data[: error.start].decode(encoding).count("\n")
        with pytest.raises(UserError, match=rf"at offset {error.start}, in line {line};"):
            documents(file, encoding=encoding)
    else:
        assert documents(file, encoding=encoding) == expected


# Lines of a file of JSON records that cannot be read, each with what is said of it.
BAD_RECORDS = {
    '{"text": 3}': "must have text in the field text, got 3",
    '{"text": null}': "must have text in the field text, got None",
    '{"title": "t", "body": "b"}': "must have the field text, as data.field says, got the fields title, body",
    '["text"]': "must be a record with the field text, got",
    json.dumps({"text": [*range(999)]}): "must have text in the field text, got [0, 1, 2,",
    '{"text": "a': "must be a JSON record, got",
    "nonsense": "must be a JSON record, got",
    '{"text": "\\ud800"}': r"must have text in the field text, got '\ud800', half of a surrogate pair or",
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
    assert len(str(caught.value)) < len(str(file)) + 250

    texts, (problem,) = skipping(file)
    assert texts == ["é", "last"]
    assert problem.startswith(said)


def test_a_byte_in_another_encoding_makes_its_record_alone_bad(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "caf\xe9"}\n{"id": "\xe9", "text": "good"}\n')
    (tmp_path / "a.csv").write_bytes(b"id,text\n1,caf\xe9\n\xe9,good\n")
    for name in ("a.jsonl", "a.csv"):
        texts, (problem,) = skipping(tmp_path / name)
        assert texts == ["good"]
        assert problem.endswith(
            r"got '\udce9', half of a surrogate pair or a byte in another encoding"
        )
        assert documents(tmp_path / name, encoding="cp1252") == ["caf\u00e9", "good"]


def test_a_record_that_is_too_long_is_bad(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "LONGEST_LINE", 100)
    file = tmp_path / "a.jsonl"
    file.write_text(f'{{"text": "a"}}\n{{"text": "{"x" * 350}"}}\n{{"text": "b"}}')
    said = "a line of more than 100 characters"
    problem = f"{file}, line 2 (byte 14), must be a JSON record, got {said}"
    assert skipping(file) == (["a", "b"], [problem])

    file = tmp_path / "a.csv"
    file.write_text(f"id,text\n1,a\n2,{'x' * 150},{'y' * 150}\n3,b\n")
    problem = f"{file}, line 3 (byte 12), must be a row of a table, got: {said}"
    assert skipping(file) == (["a", "b"], [problem])


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


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("2", "must have 2 values, got 1"),
        ("2,two,too", "must have 2 values, got 3"),
        ('2,"tw"o', "must be a row of a table, got: ',' expected after '\"'"),
    ],
)
def test_a_bad_row_of_a_table_is_told_with_its_line_and_offset_or_left_out(tmp_path, row, said):
    file = tmp_path / "a.csv"
    file.write_text(f'id,text\n1,"o\nne"\n\n{row}\n3,three\n')
    problem = f"{file}, line 5 (byte 18), {said}"
    with pytest.raises(UserError, match=re.escape(problem) + r"; data\.on_error is fail"):
        documents(file)
    assert skipping(file) == (["o\nne", "three"], [problem])


def test_an_open_quotation_mark_costs_no_more_than_the_longest_record(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LONGEST_LINE", 2**14)
    monkeypatch.setattr(opening, "BLOCK", 2**14)
    file = tmp_path / "a.csv"
    rows = "".join(f"{i},A row like any other.\n" for i in range(100_000))
    file.write_text(f'id,text\n1,one\n2,"two\n{rows}')
    said = r"line 3 \(byte 14\), must be a row of a table, got: field larger than field limit"
    with pytest.raises(UserError, match=said):
        documents(file)

    reader = Reader(on_error="skip")
    tracemalloc.start()
    lengths = Counter(len(piece.text) for piece in reader.pieces(file))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Behind the longest record, reading goes on with the next line.
    assert [*lengths] == [len("one"), len("A row like any other.")]
    assert 99_000 < lengths.total() < 100_000
    assert re.search(said, *reader.skipped)
    assert peak < 4e5 < file.stat().st_size / 5

    file.write_text('id,text\n1,one\n2,"two\n3,three\n')
    texts, (problem,) = skipping(file)
    assert texts == ["one"]
    assert (
        problem
        == f"{file}, line 3 (byte 14), must be a row of a table, got: unexpected end of data"
    )


CELLS = st.text(alphabet='ab,\t"\n\r \u00e9\u2028', max_size=8)


@given(
    rows=st.lists(st.tuples(CELLS, CELLS), max_size=6),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    ending=st.sampled_from([".csv", ".tsv"]),
)
def test_a_table_has_the_texts_that_pythons_csv_and_pyarrow_find(
    tmp_path_factory, rows, line_end, ending
):
    from pyarrow import csv as arrow

    file = tmp_path_factory.mktemp("table") / f"a{ending}"
    delimiter = "," if ending == ".csv" else "\t"
    written = io.StringIO(newline="")
    writer = csv.writer(
        written, delimiter=delimiter, lineterminator=line_end, quoting=csv.QUOTE_ALL
    )
    writer.writerow(["text", "other"])
    writer.writerows(rows)
    file.write_bytes(written.getvalue().encode())

    expected = [text for text, _ in rows if text]
    assert documents(file) == expected
    table = arrow.read_csv(
        file,
        parse_options=arrow.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=arrow.ConvertOptions(
            column_types={"text": pyarrow.string()}, strings_can_be_null=False
        ),
    )
    assert [text for text in table["text"].to_pylist() if text] == expected


@given(
    texts=st.lists(st.text(max_size=8), max_size=6),
    plain=st.booleans(),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_json_lines_have_the_texts_that_were_written(tmp_path_factory, texts, plain, encoding):
    file = tmp_path_factory.mktemp("lines") / "a.jsonl"
    lines = [json.dumps({"text": text}, ensure_ascii=not plain) for text in texts]
    file.write_bytes("\r\n".join(lines).encode(encoding))
    assert documents(file) == [text for text in texts if text]


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


@pytest.mark.parametrize("name", ["a.parquet", "a.txt.zst"])
def test_what_needs_pyarrow_says_how_to_install_it(tmp_path, monkeypatch, name):
    (tmp_path / name).write_text("text\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'gptmini\[data\]'"):
        documents(tmp_path / name)
