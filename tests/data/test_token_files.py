"""Token files of other programs, in the layouts that their own code writes."""

import numpy as np
import pytest
import tiktoken

from gptmini import tokenizer
from gptmini.console.progress import Watcher
from gptmini.data import TokenFiles, TokenStore, prepare
from gptmini.system.errors import UserError
from tokenizer.texts import tokenizer_of_gpt2

TEXTS = ["h\u00e9llo", "abc", "\U0001f600", "more text"]
IDS = [i for text in TEXTS for i in (*text.encode(), 256)]
HELD_OUT = [256, *b"held out"]


def as_nanogpt_writes(path, ids):
    """Write a file like nanoGPT's data/openwebtext/prepare.py: an array of np.uint16 without a header."""
    arr = np.memmap(path, dtype=np.uint16, mode="w+", shape=(len(ids),))
    arr[:] = ids
    arr.flush()


def as_llm_c_writes(path, ids, *, magic=20240520, version=1, dtype=np.uint16):
    """Write a file like llm.c's dev/data/data_common.py: 256 integers of four bytes (three are used), then the ids."""
    header = np.zeros(256, dtype=np.int32)
    header[:3] = magic, version, len(ids)
    with path.open("wb") as file:
        file.write(header.tobytes())
        file.write(np.array(ids, dtype=dtype).tobytes())


def prepared(path, *, val_path=None, val_fraction=0.5, build=tokenizer.byte):
    """Prepare token files in the folder data beside them; return the store, and whether it was written now."""
    source = TokenFiles(str(path), None if val_path is None else str(val_path), val_fraction)
    return prepare(source, build, path.parent / "data")


@pytest.mark.parametrize("write", [as_nanogpt_writes, as_llm_c_writes])
def test_files_are_read_in_their_order_and_counted(tmp_path, write):
    write(tmp_path / "f_train_1.bin", IDS[:9])
    write(tmp_path / "f_train_2.bin", IDS[9:])
    write(tmp_path / "f_val.bin", HELD_OUT)
    places = {"path": tmp_path / "f_train_*.bin", "val_path": tmp_path / "f_val.bin"}
    store, written = prepared(**places)

    assert written
    assert store.tokens("train")[:].tolist() == IDS
    assert store.tokens("train")[np.array([[8, 9, 10]])].tolist() == [IDS[8:11]]
    assert store.tokens("val")[:].tolist() == HELD_OUT
    n_bytes = sum(len(text.encode()) for text in TEXTS)
    assert (store.n_tokens("train"), store.n_bytes("train")) == (len(IDS), n_bytes)
    assert (store.n_documents("train"), store.n_documents("val")) == (len(TEXTS), 1)
    assert store.n_bytes("val") == len("held out")
    assert [store.meta[split]["largest_id"] for split in ("train", "val")] == [256, 256]
    store.check_size("train")
    store.verify()
    assert [path.name for path in store.folder.iterdir()] == ["meta.json"]  # nothing is copied

    again, written = prepared(**places)
    assert not written
    assert again.fingerprint == store.fingerprint


def test_ids_of_four_bytes_are_known_by_their_version_and_the_end_is_held_out(tmp_path):
    for name, ids in (("a.bin", IDS[:9]), ("b.bin", IDS[9:])):
        as_llm_c_writes(tmp_path / name, ids, magic=20240801, version=7, dtype=np.uint32)
    store, _ = prepared(tmp_path / "*.bin", val_fraction=0.25)
    n_train = int(len(IDS) * 0.75)
    assert store.tokens("train")[:].tolist() == IDS[:n_train]
    assert store.tokens("val")[:].tolist() == IDS[n_train:]
    assert store.meta["dtype"] == "uint32"


def test_bytes_of_gpt2s_ids_are_those_of_the_text(tmp_path):
    tokenizer_of_gpt2()
    coder = tiktoken.get_encoding("gpt2")
    text = "Some text, caf\u00e9 \u65e5\u672c \U0001f600 and more. " * 50
    as_nanogpt_writes(tmp_path / "a.bin", [*coder.encode_ordinary(text), coder.eot_token])
    store, _ = prepared(tmp_path / "a.bin", build=tokenizer.gpt2)
    assert store.n_bytes("train") + store.n_bytes("val") == len(text.encode())


def test_files_that_were_moved_are_found_again(tmp_path):
    as_nanogpt_writes(tmp_path / "a.bin", IDS)
    first, _ = prepared(tmp_path / "a.bin")
    (tmp_path / "a.bin").rename(tmp_path / "b.bin")
    with pytest.raises(
        UserError, match=r"a\.bin is missing .* gptmini prepare data=tokens data\.path="
    ):
        TokenStore(first.folder)

    second, written = prepared(tmp_path / "b.bin")
    assert written
    assert second.folder == first.folder
    assert second.tokens("val")[:].tolist() == IDS[len(IDS) // 2 :]


def test_a_file_that_changes_while_it_is_counted_is_refused(tmp_path):
    as_nanogpt_writes(tmp_path / "a.bin", np.arange(10_000) % 256)
    source = TokenFiles(str(tmp_path / "a.bin"), None, 0.5)
    watcher = Watcher(on_progress=lambda _: (tmp_path / "a.bin").write_bytes(bytes(30_000)))
    with pytest.raises(UserError, match=r"a\.bin must not change"):
        prepare(source, tokenizer.byte, tmp_path / "data", watcher=watcher)
    assert not list((tmp_path / "data").glob("tokens*"))


def write_cut_short(path):
    as_llm_c_writes(path, IDS)
    path.write_bytes(path.read_bytes()[:-2])


def write_characters(path):
    as_nanogpt_writes(path, IDS)
    path.with_name("meta.pkl").touch()


MISTAKES = {
    "cut short": (
        write_cut_short,
        r"a\.bin must contain \d+ ids .* header, got [\d,]+ bytes; ",
    ),
    "a version": (
        lambda path: as_llm_c_writes(path, IDS, version=3),
        r"a\.bin must have .* version 1 .*, got .* 3",
    ),
    "text": (
        lambda path: path.write_text("Plain text."),
        r"a\.bin looks like text, .*; use data=text",
    ),
    "four bytes": (
        lambda path: np.arange(99, dtype="<u4").tofile(path),
        r"a\.bin must contain ids of 2 bytes, got .* 4 or 8 bytes; convert",
    ),
    "another tokenizer": (
        lambda path: as_nanogpt_writes(path, [257, 1, 2, 3]),
        r"a\.bin must .* below .* 257, got 257; use the tokenizer",
    ),
    "characters": (
        write_characters,
        r"meta\.pkl\); .* tokenizer=char",
    ),
}


@pytest.mark.parametrize(("write", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_file_that_is_no_token_file_is_refused(tmp_path, write, said):
    write(tmp_path / "a.bin")
    with pytest.raises(UserError, match=said):
        prepared(tmp_path / "a.bin")
    assert not list((tmp_path / "data").glob("tokens*"))


def test_held_out_files_are_those_called_val_or_named_by_val_path(tmp_path):
    for name in ("train.bin", "val.bin", "evaluate.bin"):
        as_nanogpt_writes(tmp_path / name, IDS)

    def held_out(path, val_path=None):
        source = TokenFiles(str(path), val_path, 0.5)
        return [[file.path.name for file in files] for files in (source.files, source.val_files)]

    assert held_out(tmp_path) == [["evaluate.bin", "train.bin"], ["val.bin"]]
    assert held_out(tmp_path / "val.bin") == [["val.bin"], []]
    train = str(tmp_path / "train.bin")
    assert held_out(tmp_path, train) == [["evaluate.bin", "val.bin"], ["train.bin"]]
    with pytest.raises(UserError, match=r"^data\.path has no files left .* data\.val_path"):
        TokenFiles(str(tmp_path), str(tmp_path), 0.5)
