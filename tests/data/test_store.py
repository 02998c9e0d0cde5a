"""The token store: files byte by byte as in data/README.md, and errors for stale or damaged files."""

import hashlib
import json
import os
import re
import shutil
import struct
import zlib
from functools import partial

import numpy as np
import pytest

from gptmini import tokenizer
from gptmini.data import prepare
from gptmini.data.prepared.store import TokenStore
from gptmini.system.errors import UserError
from toys import Documents

CORPUS = Documents(["h\u00e9llo", "", "abc<|endoftext|>"], ["\u65e5"])


def sha256(value):
    """Return the digest of a value as defined in data/README.md."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def numbers(path, letter):
    """Return the values in a file by a format letter of struct."""
    data = path.read_bytes()
    return list(struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data))


def test_files_hold_what_the_format_page_says(tmp_path):
    store, written = prepare(CORPUS, tokenizer.byte, tmp_path)
    assert written

    train = [*"h\u00e9llo".encode(), 256, 256, *b"abc<|endoftext|>", 256]
    assert numbers(store.folder / "train.bin", "H") == train
    assert numbers(store.folder / "val.bin", "H") == [*"\u65e5".encode(), 256]
    assert numbers(store.folder / "train.index", "Q") == [7, 8, 25]
    assert numbers(store.folder / "val.index", "Q") == [4]
    names = {"meta.json", "train.bin", "train.index", "val.bin", "val.index"}
    assert {path.name for path in store.folder.iterdir()} == names

    meta = json.loads((store.folder / "meta.json").read_text())
    counts = {
        "train": {"documents": 3, "bytes": 6 + 0 + 16, "tokens": 25, "largest_id": 256},
        "val": {"documents": 1, "bytes": 3, "tokens": 4, "largest_id": 256},
    }
    for split, wanted in counts.items():
        checksums = {
            "crc32": [zlib.crc32((store.folder / f"{split}.bin").read_bytes())],
            "index_crc32": [zlib.crc32((store.folder / f"{split}.index").read_bytes())],
        }
        assert meta[split] == wanted | checksums
    assert (meta["format"], meta["dtype"]) == (3, "uint16")
    texts = [["h\u00e9llo", "", "abc<|endoftext|>"], ["\u65e5"], []]
    assert meta["source"] == {"corpus": "given", "texts": texts, "val_fraction": None}
    assert meta["builder"] == {"name": "byte"}
    assert tokenizer.from_dict(meta["tokenizer"]).encode("\u00e9") == [0xC3, 0xA9]

    fingerprint = sha256({key: meta[key] for key in ("format", "source", "builder")})
    assert meta["fingerprint"] == fingerprint
    assert store.folder.name == f"given-byte-{fingerprint[:12]}"
    assert meta.pop("digest") == sha256(meta)
    again, written = prepare(CORPUS, tokenizer.byte, tmp_path)
    assert (again.folder, written) == (store.folder, False)
    bpe, _ = prepare(CORPUS, partial(tokenizer.bpe, vocab_size=260), tmp_path)
    assert bpe.meta["builder"] == {"name": "bpe", "vocab_size": 260}


@pytest.mark.parametrize(
    ("n_characters", "letter", "dtype"), [(2**16, "H", "uint16"), (2**16 + 1, "I", "uint32")]
)
def test_ids_take_two_bytes_up_to_65536_kinds_and_four_beyond(
    tmp_path, n_characters, letter, dtype
):
    text = "".join(map(chr, range(0xE000, 0xE000 + n_characters)))  # these include no surrogates
    store, _ = prepare(Documents([text], [text[-3:]]), tokenizer.character, tmp_path)

    ids = list(range(n_characters))
    assert store.meta["dtype"] == store.tokens("val").dtype.name == dtype
    assert numbers(store.folder / "train.bin", letter) == store.tokens("train").tolist() == ids
    assert numbers(store.folder / "val.bin", letter) == ids[-3:]


def edit(**changes):
    """Return a damage that changes keys of meta.json; None deletes a key."""

    def damage(folder):
        meta = json.loads((folder / "meta.json").read_text()) | changes
        kept = {key: value for key, value in meta.items() if value is not None}
        (folder / "meta.json").write_text(json.dumps(kept))

    return damage


def rewrite(name, change):
    """Return a damage that changes the bytes of a file."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


DAMAGES = {
    "a value edited": edit(dtype="uint32"),
    "the digest gone": edit(digest=None),
    "the format of 0.2": edit(format=2),
    "meta.json cut short": rewrite("meta.json", lambda data: data[:-5]),
    "meta.json gone": lambda folder: (folder / "meta.json").unlink(),
    "train.bin gone": lambda folder: (folder / "train.bin").unlink(),
    "train.bin longer": rewrite("train.bin", lambda data: data + b"\0\0"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_is_refused_by_name_and_left_as_it_is(tmp_path, damage):
    folder = prepare(CORPUS, tokenizer.byte, tmp_path)[0].folder
    damage(folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}

    wanted = rf"^.*delete {re.escape(str(folder))} to prepare it again\Z"
    with pytest.raises(UserError, match=wanted):
        prepare(CORPUS, tokenizer.byte, tmp_path)
    with pytest.raises(UserError, match=rf"^{re.escape(str(folder))}"):
        TokenStore(folder)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_folder_that_was_renamed_is_not_taken_for_another(tmp_path):
    other = Documents(["other"], ["text"])
    one = prepare(CORPUS, tokenizer.byte, tmp_path)[0].folder
    two = prepare(other, tokenizer.byte, tmp_path)[0].folder
    shutil.rmtree(two)
    one.rename(two)
    with pytest.raises(UserError, match=r"different text or .* tokenizer; delete"):
        prepare(other, tokenizer.byte, tmp_path)


def test_a_file_that_was_cut_short_is_refused_before_it_is_read(tmp_path):
    store, _ = prepare(CORPUS, tokenizer.byte, tmp_path)
    os.truncate(store.folder / "train.bin", 10)

    store.check_size("val")
    said = r"train\.bin was truncated .* 10 of 50 bytes .*; delete"
    with pytest.raises(UserError, match=said):
        store.check_size("train")


def test_ids_that_changed_since_they_were_prepared_are_noticed_where_they_are_read(tmp_path):
    store, _ = prepare(CORPUS, tokenizer.byte, tmp_path)
    store.check_ids("train", np.array([[97, 98], [99, 256]]))
    with pytest.raises(UserError, match=r"train\.bin .* at most 256, got 300; delete"):
        store.check_ids("train", np.array([[97, 300]]))


@pytest.mark.parametrize("n", [1024, 5000])
def test_each_block_has_its_checksum_and_verify_compares_all(tmp_path, monkeypatch, n):
    monkeypatch.setattr("gptmini.data.prepared.checksums.BLOCK", 1024)
    texts = [chr(97 + i % 26) * (i % 7) for i in range(n)]
    store, _ = prepare(Documents(texts, ["held out"]), tokenizer.byte, tmp_path)
    for name, key in (("train.bin", "crc32"), ("train.index", "index_crc32")):
        data = (store.folder / name).read_bytes()
        blocks = [data[i : i + 1024] for i in range(0, len(data), 1024)]
        assert len(blocks) > 2
        assert store.meta["train"][key] == [zlib.crc32(block) for block in blocks]

    # Opening reads only the first and the last block.
    store.verify()
    file = store.folder / "train.bin"
    sound = file.read_bytes()
    for place, is_seen_when_opened in ((0, True), (3000, False), (len(sound) - 1, True)):
        file.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        if not is_seen_when_opened:
            TokenStore(store.folder)
        with pytest.raises(UserError, match=r"train\.bin does not match meta\.json"):
            TokenStore(store.folder) if is_seen_when_opened else store.verify()
