"""Token files of other programs: the layouts that their own code writes, read as they are."""

import numpy as np
import pytest
import tiktoken

from gptmini import tokenizer
from gptmini.data import Watcher
from gptmini.data.store import TokenStore
from gptmini.data.token_files import TokenFiles
from gptmini.user_error import UserError

TEXTS = ["h\u00e9llo", "abc", "\U0001f600", "more text"]
IDS = [i for text in TEXTS for i in (*text.encode(), 256)]


def as_nanogpt_writes(path, ids):
    """nanoGPT, data/openwebtext/prepare.py: a memory-mapped array of np.uint16, written whole."""
    arr = np.memmap(path, dtype=np.uint16, mode="w+", shape=(len(ids),))
    arr[:] = ids
    arr.flush()


def as_llm_c_writes(path, ids, *, magic=20240520, version=1, dtype=np.uint16):
    """llm.c, dev/data/data_common.py: 256 integers of four bytes, of which three are used, and then the ids."""
    header = np.zeros(256, dtype=np.int32)
    header[:3] = magic, version, len(ids)
    with path.open("wb") as file:
        file.write(header.tobytes())
        file.write(np.array(ids, dtype=dtype).tobytes())


@pytest.mark.parametrize("write", [as_nanogpt_writes, as_llm_c_writes])
def test_files_are_read_in_their_order_and_counted(tmp_path, write):
    write(tmp_path / "f_train_1.bin", IDS[:9])
    write(tmp_path / "f_train_2.bin", IDS[9:])
    write(tmp_path / "f_val.bin", [256, *b"held out"])
    source = TokenFiles(str(tmp_path / "f_train_*.bin"), str(tmp_path / "f_val.bin"), 0.5)
    store, written = source.prepare(tokenizer.byte, tmp_path / "data")

    assert written
    assert store.tokens("train")[:].tolist() == IDS
    assert store.tokens("train")[np.array([[8, 9, 10]])].tolist() == [IDS[8:11]]
    assert store.tokens("val")[:].tolist() == [256, *b"held out"]
    n_bytes = sum(len(text.encode()) for text in TEXTS)
    assert (store.n_tokens("train"), store.n_bytes("train")) == (len(IDS), n_bytes)
    assert (store.n_documents("train"), store.n_documents("val")) == (len(TEXTS), 1)
    assert store.n_bytes("val") == len("held out")
    store.check_size("train")
    store.verify()
    assert [path.name for path in store.folder.iterdir()] == ["meta.json"]  # nothing is copied

    again, written = source.prepare(tokenizer.byte, tmp_path / "data")
    assert not written
    assert again.fingerprint == store.fingerprint


def test_bytes_of_gpt2s_ids_are_those_of_the_text(tmp_path):
    try:
        coder = tiktoken.get_encoding("gpt2")
    except Exception:
        pytest.skip("TIKTOKEN_CACHE_DIR does not name a folder with tiktoken's two files of gpt2")
    text = "Some text, caf\u00e9 \u65e5\u672c \U0001f600 and more. " * 50
    as_nanogpt_writes(tmp_path / "a.bin", [*coder.encode_ordinary(text), coder.eot_token])
    source = TokenFiles(str(tmp_path), None, 0.5)
    store, _ = source.prepare(tokenizer.gpt2, tmp_path / "data")
    assert store.n_bytes("train") + store.n_bytes("val") == len(text.encode())


def test_ids_of_four_bytes_are_known_by_their_version(tmp_path):
    as_llm_c_writes(tmp_path / "a.bin", IDS, magic=20240801, version=7, dtype=np.uint32)
    source = TokenFiles(str(tmp_path / "a.bin"), None, 0.25)
    store, _ = source.prepare(tokenizer.byte, tmp_path / "data")
    n_train = int(len(IDS) * 0.75)
    assert store.tokens("train")[:].tolist() == IDS[:n_train]
    assert store.tokens("val")[:].tolist() == IDS[n_train:]
    assert store.meta["dtype"] == "uint32"


def test_files_that_were_moved_are_found_again(tmp_path):
    as_nanogpt_writes(tmp_path / "a.bin", IDS)
    first, _ = TokenFiles(str(tmp_path / "a.bin"), None, 0.5).prepare(
        tokenizer.byte, tmp_path / "data"
    )
    (tmp_path / "a.bin").rename(tmp_path / "b.bin")
    with pytest.raises(
        UserError, match=r"a\.bin must have the \d+ bytes that it had when .* missing"
    ):
        TokenStore(first.folder)

    second, written = TokenFiles(str(tmp_path / "b.bin"), None, 0.5).prepare(
        tokenizer.byte, tmp_path / "data"
    )
    assert written
    assert second.folder == first.folder
    assert second.tokens("val")[:].tolist() == IDS[len(IDS) // 2 :]


def test_a_shorter_file_is_noticed_before_it_is_read(tmp_path):
    as_nanogpt_writes(tmp_path / "a.bin", IDS)
    source = TokenFiles(str(tmp_path / "a.bin"), None, 0.5)
    store, _ = source.prepare(tokenizer.byte, tmp_path / "data")
    store.check_size("train")
    with (tmp_path / "a.bin").open("r+b") as file:
        file.truncate(8)
    with pytest.raises(UserError, match=r"a\.bin must stay as it is while it is read, got 8 bytes"):
        store.check_size("train")


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-2])


MISTAKES = {
    "header": (
        lambda path: (as_llm_c_writes(path, IDS), cut_short(path)),
        r"a\.bin must hold the \d+ ids that its header tells, got [\d,]+ bytes; is it whole\?",
    ),
    "version": (
        lambda path: as_llm_c_writes(path, IDS, version=3),
        r"a\.bin must be of a version that is known, got 3",
    ),
    "odd": (lambda path: path.write_bytes(b"\0bc"), r"a\.bin must hold ids of 2 bytes, got 3 byt"),
    "negative": (
        lambda path: path.write_bytes(np.array([20240520, 1, -506], dtype="<i4").tobytes()),
        r"a\.bin must hold the -506 ids that its header tells, got 12 bytes",
    ),
    "text": (
        lambda path: path.write_text("Plain text."),
        r"a\.bin must hold ids of tokens, and looks like text; use data=text for it",
    ),
    "numpy": (
        lambda path: np.save(path.open("wb"), np.arange(9, dtype=np.uint16)),
        r"a\.bin must hold ids alone, and is a NumPy file; write it with tofile\(\)",
    ),
    "four bytes": (
        lambda path: np.arange(99, dtype="<u4").tofile(path),
        r"a\.bin must hold ids of 2 bytes, and looks like ids of four or eight bytes",
    ),
    "empty": (lambda path: path.write_bytes(b""), r"a\.bin must hold ids of 2 bytes, got 0 bytes"),
    "beyond": (
        lambda path: as_nanogpt_writes(path, [1, 257]),
        r"a\.bin must hold ids below 257, .*, got 257; is it of another tokenizer\?",
    ),
    "characters": (
        lambda path: (as_nanogpt_writes(path, IDS), path.with_name("meta.pkl").write_bytes(b"")),
        r"a\.bin lies beside a meta\.pkl, .* train on the text with tokenizer=char",
    ),
    "no text": (
        lambda path: as_nanogpt_writes(path, [256, 256, 256]),
        r"the train split must hold text, got none; give more tokens",
    ),
}


@pytest.mark.parametrize(("make", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_file_that_is_no_token_file_is_refused(tmp_path, make, said):
    make(tmp_path / "a.bin")
    with pytest.raises(UserError, match=said):
        TokenFiles(str(tmp_path / "a.bin"), None, 0.5).prepare(tokenizer.byte, tmp_path / "data")
    assert not list((tmp_path / "data").glob("tokens*"))


def test_a_tokenizer_that_has_to_learn_is_refused(tmp_path):
    as_nanogpt_writes(tmp_path / "a.bin", IDS)
    with pytest.raises(UserError, match="no text to learn one from; add tokenizer=gpt2"):
        TokenFiles(str(tmp_path / "a.bin"), None, 0.5).prepare(
            tokenizer.character, tmp_path / "data"
        )


@pytest.mark.parametrize("data", [bytes(20_000), bytes(30_000)])
def test_a_file_that_changes_while_it_is_counted_is_refused(tmp_path, data):
    as_nanogpt_writes(tmp_path / "a.bin", np.arange(10_000) % 256)
    source = TokenFiles(str(tmp_path / "a.bin"), None, 0.5)
    watcher = Watcher(on_progress=lambda _: (tmp_path / "a.bin").write_bytes(data))
    with pytest.raises(UserError, match=r"a\.bin must stay as it is while it is read"):
        source.prepare(tokenizer.byte, tmp_path / "data", watcher=watcher)
    assert not list((tmp_path / "data").glob("tokens*"))


def test_an_empty_path_is_refused():
    with pytest.raises(UserError, match=r"^data\.path must be a file, .*, got an empty name"):
        TokenFiles("", None, 0.5)


def test_files_that_are_called_val_are_held_out_of_a_folder(tmp_path):
    for name, ids in (("train.bin", IDS), ("val.bin", [256, *b"held out"]), ("evaluate.bin", IDS)):
        as_nanogpt_writes(tmp_path / name, ids)
    source = TokenFiles(str(tmp_path), None, 0.5)
    assert [file.path.name for file in source.files] == ["evaluate.bin", "train.bin"]
    assert [file.path.name for file in source.val_files] == ["val.bin"]
    notes = []
    source.prepare(tokenizer.byte, tmp_path / "data", watcher=Watcher(on_note=notes.append))
    assert notes == []  # it is what nanoGPT's names mean
    assert TokenFiles(str(tmp_path / "val.bin"), None, 0.5).val_files == []


def test_held_out_files_are_not_trained_on(tmp_path):
    for name in ("a.bin", "b.bin"):
        as_nanogpt_writes(tmp_path / name, IDS)
    source = TokenFiles(str(tmp_path), str(tmp_path / "b.bin"), 0.5)
    assert [file.path.name for file in source.files] == ["a.bin"]
    with pytest.raises(
        UserError, match=r"^data\.path must name more than the files of data\.val_path"
    ):
        TokenFiles(str(tmp_path), str(tmp_path), 0.5)


def test_a_pipe_is_refused():
    with pytest.raises(UserError, match=r"data\.path must name token files, got -; they are read"):
        TokenFiles("-", None, 0.5)
