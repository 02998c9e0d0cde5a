"""Broken files of text, and broken token files."""

import bz2
import gzip
import io
import json
import lzma

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from fuzz.inputs import DAMAGE, damaged, fuzz
from fuzz.outcomes import outcome
from gptmini.data import TextCorpus, TokenFiles

pytestmark = pytest.mark.slow  # together they take a minute

TEXTS = ["A text of words, caf\u00e9.", "\u65e5\u672c and \U0001f600\r\n", "x" * 200, "the end"]
JSON_LINES = "".join(
    json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(TEXTS)
).encode()
TABLE = "id,text\n" + "\n".join(f'{i},"{text}"' for i, text in enumerate(TEXTS)) + "\n"


def as_parquet():
    file = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": TEXTS}), file, compression="zstd")
    return file.getvalue()


def as_zstd(data):
    packed = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(packed, "zstd") as stream:
        stream.write(data)
    return packed.getvalue().to_pybytes()


FILES = {
    "a.txt": "|".join(TEXTS).encode(),
    "a16.txt": "|".join(TEXTS).encode("utf-16"),
    "a.jsonl": JSON_LINES,
    "a.csv": TABLE.encode(),
    "a.parquet": as_parquet(),
    "a.txt.gz": gzip.compress("|".join(TEXTS).encode()),
    "a.jsonl.bz2": bz2.compress(JSON_LINES),
    "a.csv.xz": lzma.compress(TABLE.encode()),
    "a.jsonl.zst": as_zstd(JSON_LINES),
}
CHECKED = (".gz", ".bz2", ".xz")  # packings with a checksum of what they hold


def read(path, on_error):
    """The texts of a file, as UTF-8."""
    corpus = TextCorpus(path, 0.5, separator="|", on_error=on_error)
    corpus.boundary()
    return [document.text.encode() for document in corpus.documents()]


@fuzz(600)
@given(name=st.sampled_from([*FILES]), damage=DAMAGE, on_error=st.sampled_from(["fail", "skip"]))
def test_broken_files_are_refused_in_one_line_or_give_unicode(
    tmp_path_factory, name, damage, on_error
):
    folder = tmp_path_factory.mktemp("sources")
    (folder / name).write_bytes(FILES[name])
    sound = read(folder / name, on_error)
    assert b"".join(sound).startswith(b"A text of words")

    (folder / name).write_bytes(damaged(FILES[name], damage))
    texts = outcome(read, folder / name, on_error)
    if texts is not None and name.endswith(CHECKED):
        # What was added behind the packed bytes may be more packed bytes.
        assert b"".join(texts).startswith(b"".join(sound))


HEADER = np.array([20240520, 1, 300] + [0] * 253, dtype="<i4").tobytes()
TOKENS = {
    "nanogpt.bin": np.arange(300, dtype="<u2").tobytes(),
    "llm_c.bin": HEADER + np.arange(300, dtype="<u2").tobytes(),
}


@fuzz(300)
@given(name=st.sampled_from([*TOKENS]), damage=DAMAGE, place=st.integers(0, 12))
def test_broken_token_files_are_refused_in_one_line_or_are_as_long_as_they_say(
    tmp_path_factory, name, damage, place
):
    folder = tmp_path_factory.mktemp("tokens")
    # Most damage is done to the header, which alone has a meaning.
    damage = [(kind, at % 12 if place else at, content) for kind, at, content in damage]
    (folder / name).write_bytes(damaged(TOKENS[name], damage))

    def read_tokens(path):
        (file,) = TokenFiles(str(path), None, 0.5).files
        return file.skip, file.ids().tolist()

    found = outcome(read_tokens, folder / name)
    if found is not None:
        skip, ids = found
        assert skip + 2 * len(ids) == (folder / name).stat().st_size
