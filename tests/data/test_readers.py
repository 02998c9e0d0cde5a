"""The documents of files of every format, compared with the libraries that wrote them, and the size of parts."""

import bz2
import csv
import gzip
import io
import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.parts import whole
from gptmini.data.reading import cutting, opening
from gptmini.data.reading.cutting import in_parts
from gptmini.data.reading.readers import Reader
from gptmini.system.errors import UserError
from gptmini.tokenizer import SPLIT_PATTERN, BytePairTokenizer, Document

pyarrow = pytest.importorskip("pyarrow", reason="pip install -e '.[data]'")
from pyarrow import csv as arrow_csv  # noqa: E402
from pyarrow import parquet  # noqa: E402

# Texts with difficult content: quotation marks, delimiters, line ends, characters of one to four bytes.
TEXTS = ["A text.", 'He said "no", twice.', "tab\tand, comma", "two\nlines\r\n", "é\u2028☃😀", " "]


def documents(file, **how):
    """Return the documents of a file."""
    return whole(Reader(**how).read(file))


def skipping(file, **how):
    """Return the documents of a file without its bad records, and the messages about them."""
    reader = Reader(on_error="skip", **how)
    texts = whole(reader.read(file))
    assert reader.skipped.n == len(reader.skipped.problems)
    return texts, reader.skipped.problems


@pytest.fixture
def small(monkeypatch):
    """Parts of eight characters, read in blocks of seven bytes."""
    monkeypatch.setattr(cutting, "PART", 8)
    monkeypatch.setattr(opening, "BLOCK", 7)


def as_jsonl(texts):
    records = [json.dumps({"id": 1, "a": {"b": text}, "text": text}) for text in texts]
    return "\n\n".join(records).encode()


def as_table(texts, delimiter):
    written = io.StringIO(newline="")
    writer = csv.writer(written, delimiter=delimiter)
    writer.writerow(["id", "text"])
    writer.writerows(enumerate(texts))
    return written.getvalue().encode()


def as_parquet(texts):
    written = io.BytesIO()
    columns = {"id": range(len(texts)), "a": [{"b": text} for text in texts], "text": texts}
    parquet.write_table(pyarrow.table(columns), written, row_group_size=2)
    return written.getvalue()


def as_zstd(data):
    packed = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(packed, "zstd") as stream:
        stream.write(data)
    return packed.getvalue().to_pybytes()


FORMATS = {
    ".jsonl": as_jsonl,
    ".ndjson": as_jsonl,
    ".csv": lambda texts: as_table(texts, ","),
    ".tsv": lambda texts: as_table(texts, "\t"),
    ".parquet": as_parquet,
}
PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": as_zstd}


@pytest.mark.parametrize("ending", FORMATS)
def test_records_give_the_texts_of_their_field(tmp_path, ending):
    file = tmp_path / f"a{ending}"
    file.write_bytes(FORMATS[ending](TEXTS))
    how = {"quote": True} if ending == ".tsv" else {}
    assert documents(file, **how) == TEXTS
    if ending in (".jsonl", ".parquet"):
        assert documents(file, field="a.b") == TEXTS

    for packing, pack in PACK.items():
        packed = tmp_path / f"a{ending}{packing}"
        packed.write_bytes(pack(file.read_bytes()))
        if ending == ".parquet":
            with pytest.raises(UserError, match=r"Parquet .*\.parquet\S+; decompress"):
                documents(packed)
        else:
            assert documents(packed, **how) == TEXTS


@pytest.mark.parametrize("packing", PACK)
def test_a_packed_text_is_read_to_its_end_or_refused(tmp_path, packing):
    file = tmp_path / f"a.txt{packing}"
    text = "A text. " * 40_000
    packed = PACK[packing](text.encode())
    # Two concatenated packed texts are one text. Tools write such files.
    file.write_bytes(2 * packed)
    assert documents(file) == [2 * text]

    for broken in (packed[: len(packed) // 2], packed[:-3], b"no archive"):
        file.write_bytes(broken)
        with pytest.raises(UserError, match=rf"a\.txt{packing}: the {packing} file is"):
            documents(file)


@pytest.mark.usefixtures("small")
@given(text=st.text("ab |\n", max_size=60), separator=st.sampled_from(["|", "ab", "aab"]))
def test_a_separator_cuts_a_text_as_python_does(tmp_path_factory, text, separator):
    file = tmp_path_factory.mktemp("text") / "a.txt"
    file.write_bytes(text.encode())
    expected = [part for part in text.split(separator) if part]
    assert documents(file, separator=separator) == expected


BPE = BytePairTokenizer(
    SPLIT_PATTERN, [bytes([i]) for i in range(256)] + [b" a", b"\n\n", b"  ", b" \n", b"ab"]
)


CHARACTERS = "ab1.' \n\r\t\u00a0\u2003\x1c\u0301字"


@pytest.mark.usefixtures("small")
@given(text=st.lists(st.sampled_from([*CHARACTERS, " " * 10, "\n" * 9, "b" * 9])).map("".join))
def test_encoding_parts_gives_the_ids_of_the_whole_text(text):
    parts = [*(Document(None, character, ends=False) for character in text), Document(None, "")]
    cut = list(in_parts(iter(parts), Path("a.txt")))
    ids = [token for part in cut for token in BPE.encode(part.text)]
    assert ids == BPE.encode(text)


@pytest.mark.usefixtures("small")
def test_a_run_without_white_space_is_refused_by_the_name_of_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(cutting, "LONGEST_RUN", 50)
    (tmp_path / "a.txt").write_text("a " + 70 * "x")
    with pytest.raises(UserError, match=r"a\.txt .* 50 characters .* start with ' ?x"):
        documents(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_text("a " + 40 * "x" + " b")
    assert documents(tmp_path / "a.txt") == ["a " + 40 * "x" + " b"]


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16-le", "shift_jis"])
def test_another_encoding_is_read_where_the_user_names_it(tmp_path, encoding):
    text = {"shift_jis": "日本"}.get(encoding, "größer")
    for name, content in (
        ("a.txt", text),
        ("a.jsonl", f'{{"text": "{text}"}}\n'),
        ("a.csv", f"text\n{text}\n"),
    ):
        (tmp_path / name).write_text(content, encoding=encoding)
        assert documents(tmp_path / name, encoding=encoding) == [text]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "shift_jis"])
@given(text=st.text(alphabet="ab\n\r日本", max_size=40), wrong=st.integers(0, 40))
def test_a_wrong_byte_is_told_with_its_offset_and_line_as_pythons_decoder_finds_it(
    tmp_path_factory, encoding, text, wrong
):
    file = tmp_path_factory.mktemp("wrong") / "a.txt"
    data = text[:wrong].encode(encoding) + b"\xff\xdf" + text[wrong:].encode(encoding)
    file.write_bytes(data)
    try:
        expected = [data.decode(encoding)]
    except UnicodeDecodeError as error:
        line = 1 + data[: error.start].decode(encoding).count("\n")
        said = rf"got byte 0x{data[error.start]:02x} at offset {error.start} \(line {line}\); "
        with pytest.raises(UserError, match=said):
            documents(file, encoding=encoding)
    else:
        assert documents(file, encoding=encoding) == expected


# Unreadable lines of a file of records, each with its message.
BAD_RECORDS = {
    ".jsonl": {
        '{"text": 3}': "the field 'text' must be text, got 3",
        '{"title": "t"}': "expected the field 'text' (set data.field to read another one), got the fields title",
        '["text"]': "expected the field 'text' (set data.field to read another one), got ['text']",
        '{"text": "a': "invalid JSON: ",
        '{"text": "\\ud800"}': r"the field 'text' must be text, got '\ud800', half of a",
        '{"text": "\udce9"}': r"the field 'text' must be text, got '\udce9', half of a",
        "[" * 5000: "invalid JSON: ",
    },
    ".csv": {
        "2": "the row must have 2 values, got 1",
        "2,two,too": "the row must have 2 values, got 3",
        '2,"tw"o': "invalid table row: ',' expected after '\"'",
        "2,\udce9": r"the field 'text' must be text, got '\udce9', half of a",
    },
    ".tsv": {'"two': "the row must have 2 values, got 1 (data.quote=true "},
}
AROUND = {
    ".jsonl": ('{"text": "é"}\n\n', '\n{"text": "last"}\n'),
    ".csv": ("id,text\n1,é\n\n", "\n3,last\n"),
    ".tsv": ("id\ttext\n1\té\n\n", "\n3\tlast\n"),
}


@pytest.mark.parametrize(
    ("ending", "line"), [(ending, line) for ending in BAD_RECORDS for line in BAD_RECORDS[ending]]
)
def test_a_bad_record_is_told_with_its_line_and_offset_or_left_out(tmp_path, ending, line):
    before, after = AROUND[ending]
    file = tmp_path / f"a{ending}"
    # A lone surrogate is written as a byte that is not valid UTF-8.
    file.write_bytes((before + line + after).encode(errors="surrogateescape"))
    place = f"line {1 + before.count(chr(10))} (byte {len(before.encode())})"
    said = f"{file}, {place}: {BAD_RECORDS[ending][line]}"

    with pytest.raises(UserError) as caught:
        documents(file)
    assert str(caught.value).startswith(said)
    assert "data.on_error" in str(caught.value)
    names_quotes = "invalid table row" in said or "data.quote" in said
    assert ("data.quote" in str(caught.value)) == names_quotes
    texts, (problem,) = skipping(file)
    assert texts == ["é", "last"]
    assert problem.startswith(said)


def test_bytes_that_are_no_utf8_in_a_column_of_parquet_are_bad(tmp_path):
    texts = pyarrow.array([b"good", b"b\xffd", b"good too"], type=pyarrow.binary())
    # The format allows it, and pyarrow can treat bytes as text without a check.
    column = pyarrow.Array.from_buffers(pyarrow.string(), len(texts), texts.buffers())
    parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    texts, (problem,) = skipping(tmp_path / "a.parquet")
    assert texts == ["good", "good too"]
    assert "a.parquet, row 2: the field 'text' " in problem


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", f'{{"text": "a"}}\n{{"text": "{"x" * 350}"}}\n'),
        ("a.csv", f"id,text\n{'x' * 80},{'y' * 80}\n"),
        ("b.csv", 'id,text\n2,"two\n' + 40 * "3,A row.\n"),
    ],
)
def test_a_record_that_is_too_long_is_refused_by_its_line(tmp_path, monkeypatch, name, content):
    monkeypatch.setattr(opening, "LONGEST_LINE", 100)
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=rf"{name}, line \d+ \(byte \d+\): .* 100 characters"):
        documents(tmp_path / name, on_error="skip")


CELLS = st.text(alphabet='ab,\t"\n\r é\u2028', max_size=8)


@given(
    rows=st.lists(st.tuples(CELLS, CELLS), max_size=6),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    ending=st.sampled_from([".csv", ".tsv"]),
)
def test_a_table_has_the_texts_that_pythons_csv_and_pyarrow_find(
    tmp_path_factory, rows, line_end, ending
):
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
    assert documents(file, quote=True) == expected
    table = arrow_csv.read_csv(
        file,
        parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            column_types={"text": pyarrow.string()}, strings_can_be_null=False
        ),
    )
    assert [text for text in table["text"].to_pylist() if text] == expected


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_quotation_marks_are_read_as_the_ending_or_the_user_says(tmp_path, ending):
    file = tmp_path / f"a{ending}"
    texts = ['"No."', '"A whole sentence."', 'He said "no".']
    rows = [("id", "text"), *((str(i), text) for i, text in enumerate(texts))]
    file.write_text("".join("\t,"[ending == ".csv"].join(row) + "\n" for row in rows))
    without_marks = ["No.", "A whole sentence.", texts[2]]
    assert documents(file) == (without_marks if ending == ".csv" else texts)
    assert documents(file, quote=True) == without_marks
    assert documents(file, quote=False) == texts


def test_a_file_that_is_no_parquet_or_lacks_the_column_is_refused(tmp_path):
    file = tmp_path / "a.parquet"
    file.write_bytes(as_parquet(TEXTS))
    with pytest.raises(UserError, match=r"the field 'body' .* fields id, a, text"):
        documents(file, field="body")
    file.write_bytes(b"\x00PAR1 no table at all")
    with pytest.raises(UserError, match="as Parquet: "):
        documents(file)
