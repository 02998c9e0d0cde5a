"""The token store: the files of data/README.md byte by byte, whole or not there, and never a stale one."""

import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import zlib
from functools import partial

import numpy as np
import pytest

from gptmini import tokenizer
from gptmini.checks import UserError
from gptmini.data.store import TokenStore, prepare
from gptmini.data.text_corpus import TextCorpus
from toys import Documents, canonical, change_meta, pairs

CORPUS = Documents(["h\u00e9llo", "", "abc<|endoftext|>"], ["\u65e5"])


def numbers(path, letter):
    """What a file holds, in struct's format of a letter."""
    data = path.read_bytes()
    return list(struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data))


def test_files_hold_what_the_format_page_says(tmp_path):
    store, written = prepare(CORPUS, tokenizer.byte, tmp_path)
    assert written

    train = [*"h\u00e9llo".encode(), 256, 256, *b"abc<|endoftext|>", 256]
    assert numbers(store.folder / "train.bin", "H") == train
    assert numbers(store.folder / "val.bin", "H") == [*"\u65e5".encode(), 256]
    assert {path.name for path in store.folder.iterdir()} == {"meta.json", "train.bin", "val.bin"}

    meta = json.loads((store.folder / "meta.json").read_text())
    crc32 = zlib.crc32((store.folder / "train.bin").read_bytes())
    assert meta["train"] == {"documents": 3, "bytes": 6 + 0 + 16, "tokens": 25, "crc32": crc32}
    crc32 = zlib.crc32((store.folder / "val.bin").read_bytes())
    assert meta["val"] == {"documents": 1, "bytes": 3, "tokens": 4, "crc32": crc32}
    assert (meta["format"], meta["dtype"], meta["source"]) == (1, "uint16", CORPUS.identity())
    assert tokenizer.from_dict(meta["tokenizer"]).encode("\u00e9") == [0xC3, 0xA9]

    made_of = {key: meta[key] for key in ("format", "source", "builder")}
    assert meta["fingerprint"] == hashlib.sha256(canonical(made_of)).hexdigest()
    assert meta.pop("digest") == hashlib.sha256(canonical(meta)).hexdigest()
    assert store.folder == tmp_path / f"given-byte-{meta['fingerprint'][:12]}"


def test_an_open_store_gives_the_same_numbers(tmp_path):
    store, _ = prepare(CORPUS, tokenizer.byte, tmp_path)
    tokens = store.tokens("train")

    assert tokens.dtype == np.dtype("<u2")
    assert tokens.tolist() == numbers(store.folder / "train.bin", "H")
    assert (store.n_tokens("train"), store.n_tokens("val")) == (25, 4)
    assert (store.n_bytes("train"), store.n_bytes("val")) == (22, 3)
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1


@pytest.mark.parametrize(
    ("n_characters", "letter", "dtype"), [(2**16, "H", "uint16"), (2**16 + 1, "I", "uint32")]
)
def test_ids_take_two_bytes_up_to_65536_kinds_and_four_beyond(
    tmp_path, n_characters, letter, dtype
):
    text = "".join(map(chr, range(0xE000, 0xE000 + n_characters)))  # no surrogate among them
    store, _ = prepare(Documents([text], [text[-3:]]), tokenizer.character, tmp_path)

    ids = list(range(n_characters))
    assert store.meta["dtype"] == store.tokens("val").dtype.name == dtype
    assert numbers(store.folder / "train.bin", letter) == store.tokens("train").tolist() == ids
    assert numbers(store.folder / "val.bin", letter) == ids[-3:]


def test_a_folder_that_no_system_can_name_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    with pytest.raises(UserError, match=r"^data_dir must be the name of a folder, got "):
        prepare(TextCorpus(str(tmp_path / "a.txt"), 0.5), tokenizer.byte, f"{tmp_path}/a\0b")


def test_a_second_prepare_opens_what_the_first_wrote(tmp_path):
    calls = []

    def byte(documents):
        calls.append(list(documents))
        return tokenizer.byte(documents)

    first, written = prepare(CORPUS, byte, tmp_path)
    stamps = [path.stat().st_mtime_ns for path in sorted(first.folder.iterdir())]
    second, written_again = prepare(CORPUS, byte, tmp_path)

    assert (written, written_again) == (True, False)
    assert calls == [pairs(CORPUS.splits["train"], CORPUS.splits["val"])]
    assert second.folder == first.folder
    assert stamps == [path.stat().st_mtime_ns for path in sorted(second.folder.iterdir())]


def test_text_split_and_tokenizer_settings_each_make_a_folder_of_their_own(tmp_path):
    path = tmp_path / "a.txt"
    builders = [
        tokenizer.byte,
        tokenizer.character,
        partial(tokenizer.bpe, vocab_size=260),
        partial(tokenizer.bpe, vocab_size=270),
    ]

    folders = []
    for text in ("to be or not to be " * 9, "to be or not to bee" * 9):
        path.write_text(text)
        for fraction in (0.1, 0.2):
            for build in builders:
                corpus = TextCorpus(str(path), fraction)
                store, _ = prepare(corpus, build, tmp_path / "data")
                folders.append(store.folder)

    assert len(set(folders)) == 16
    assert set((tmp_path / "data").iterdir()) == set(folders)


def edit(change):
    """Damage that changes meta.json."""

    def damage(folder):
        meta = json.loads((folder / "meta.json").read_text())
        change(meta)
        (folder / "meta.json").write_text(json.dumps(meta))

    return damage


def rewrite(name, change):
    """Damage that changes the bytes of a file."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


DAMAGES = {
    "a count edited": edit(lambda meta: meta["val"].update(bytes=4)),
    "the tokenizer edited": edit(lambda meta: meta["tokenizer"].update(pattern=r"\S")),
    "the digest edited": edit(lambda meta: meta.update(digest="0" * 64)),
    "the digest gone": edit(lambda meta: meta.pop("digest")),
    "a later format": edit(lambda meta: meta.update(format=2)),
    "meta.json cut short": rewrite("meta.json", lambda data: data[:-5]),
    "meta.json a list": rewrite("meta.json", lambda data: b"[]"),
    "meta.json not text": rewrite("meta.json", lambda data: b"\xff" + data),
    "meta.json gone": lambda folder: (folder / "meta.json").unlink(),
    "train.bin gone": lambda folder: (folder / "train.bin").unlink(),
    "val.bin gone": lambda folder: (folder / "val.bin").unlink(),
    "train.bin cut short": rewrite("train.bin", lambda data: data[:-2]),
    "train.bin longer": rewrite("train.bin", lambda data: data + b"\0\0"),
    "val.bin empty": rewrite("val.bin", lambda data: b""),
    "one bit of val.bin": rewrite("val.bin", lambda data: bytes([data[0] ^ 1]) + data[1:]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_is_refused_by_name_and_left_as_it_is(tmp_path, damage):
    folder = prepare(CORPUS, tokenizer.byte, tmp_path)[0].folder
    damage(folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}

    wanted = rf"^.*delete {re.escape(str(folder))} to prepare it again\Z"
    with pytest.raises(ValueError, match=wanted):
        prepare(CORPUS, tokenizer.byte, tmp_path)

    with pytest.raises(ValueError, match=rf"^{re.escape(str(folder))}"):
        TokenStore(folder)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta["train"].update(bytes=10**400),
        lambda meta: meta["train"].update(bytes=0),
        lambda meta: meta.update(source=5),
        lambda meta: meta["source"].pop("corpus"),
        lambda meta: meta["source"].update(files=5),
        lambda meta: meta["source"].update(files=[]),
        lambda meta: meta.update(builder="byte"),
        lambda meta: meta["builder"].update(name=None),
    ],
)
def test_meta_data_of_wrong_types_are_refused_although_their_digest_is_right(tmp_path, change):
    folder = prepare(CORPUS, tokenizer.byte, tmp_path)[0].folder
    change_meta(folder, change)
    with pytest.raises(UserError, match=r"meta\.json lacks what this version wrote"):
        TokenStore(folder)


@pytest.mark.parametrize("split", ["train", "val"])
def test_an_id_beyond_the_vocabulary_is_refused_although_the_digest_is_right(tmp_path, split):
    store, _ = prepare(CORPUS, tokenizer.byte, tmp_path)
    store.check_vocabulary(257)

    file = store.folder / f"{split}.bin"
    file.write_bytes(file.read_bytes()[:-2] + struct.pack("<H", 300))
    crc32 = zlib.crc32(file.read_bytes())
    change_meta(store.folder, lambda meta: meta[split].update(crc32=crc32))

    changed = TokenStore(store.folder)
    changed.check_vocabulary(301)
    wanted = rf"{split}\.bin must hold ids below 257, which is .*, got 300; delete "
    with pytest.raises(UserError, match=wanted):
        changed.check_vocabulary(257)


def test_a_file_that_was_cut_short_is_refused_before_it_is_read(tmp_path):
    store, _ = prepare(CORPUS, tokenizer.byte, tmp_path)
    before = store.tokens("train").tolist()
    os.truncate(store.folder / "train.bin", 10)

    store.check_size("val")
    wanted = r"train\.bin must stay as it is while it is read, got 10 bytes where there were 50; "
    with pytest.raises(UserError, match=wanted):
        store.check_size("train")

    # A file that was deleted or replaced is read to its end, because the system keeps what is mapped.
    os.truncate(store.folder / "train.bin", 50)
    (store.folder / "train.bin").unlink()
    store.check_size("train")
    assert store.tokens("train").tolist() == before[:5] + [0] * 20


class Failing(Documents):
    """Fails, or is interrupted, after its last document."""

    def documents(self):
        yield from super().documents()
        raise self.error


@pytest.mark.parametrize(
    "error", [ValueError("not UTF-8"), KeyboardInterrupt(), MemoryError()], ids=repr
)
def test_a_failure_in_the_middle_leaves_nothing_behind(tmp_path, error):
    corpus = Failing(["some text"], ["more"])
    corpus.error = error
    with pytest.raises(type(error)):
        prepare(corpus, tokenizer.byte, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("train", "val"), [([], ["a"]), (["a"], []), ([""], ["a"])])
def test_a_split_without_text_is_refused_and_leaves_nothing_behind(tmp_path, train, val):
    split = "val" if train == ["a"] else "train"
    wanted = f"the {split} split must hold text, got none"
    with pytest.raises(ValueError, match=wanted):
        prepare(Documents(train, val), tokenizer.character, tmp_path)
    assert list(tmp_path.iterdir()) == []


RACER = """
import sys, time
from pathlib import Path
from gptmini import tokenizer
from gptmini.data.text_corpus import TextCorpus
from gptmini.data.store import prepare

meeting, me = Path(sys.argv[1]), sys.argv[2]

def byte(documents):  # both have found no folder before either writes one
    (meeting / me).touch()
    deadline = time.monotonic() + 30
    while len(list(meeting.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    return tokenizer.byte(documents)

store, _ = prepare(TextCorpus(sys.argv[3], 0.1), byte, sys.argv[4])
print(store.folder, store.n_tokens("train"), len(list(meeting.iterdir())))
"""


def test_two_processes_at_once_make_one_folder(tmp_path):
    (tmp_path / "meeting").mkdir()
    (tmp_path / "a.txt").write_text("0123456789" * 30)
    paths = [str(tmp_path / name) for name in ("meeting", "a.txt", "data")]
    commands = [
        [sys.executable, "-c", RACER, paths[0], name, *paths[1:]] for name in ("one", "two")
    ]
    racers = [
        subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for c in commands
    ]
    ends = [racer.communicate(timeout=60) for racer in racers]
    (folder,) = (tmp_path / "data").iterdir()

    assert ends == [(f"{folder} 271 2\n", "")] * 2
