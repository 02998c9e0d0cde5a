"""Preparation: the same files from any number of workers, after any interruption, in bounded memory, never stale."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Queue

import pytest
from filelock import FileLock
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from data.parts import first_byte
from gptmini import tokenizer
from gptmini.data import Document, Watcher, preparation, prepare
from gptmini.data.preparation import Digests, Task, in_order
from gptmini.user_error import UserError
from toys import Documents

BUILDERS = [tokenizer.byte, tokenizer.character, partial(tokenizer.bpe, vocab_size=300)]


@pytest.fixture
def small_tasks(monkeypatch):
    """Let tasks be so small that a short text has many."""
    monkeypatch.setattr(preparation, "TASK", 2**12)


def some_text(n, seed=0):
    """n words of a few alphabets, some in many bytes, with line ends between."""
    draw = random.Random(seed)
    words = ["the", "caf\u00e9", "\u65e5\u672c", "\U0001f600", "x1,", "<|endoftext|>", "don't"]
    return "".join(draw.choice(words) + draw.choice([" ", "  ", "\n", "\r\n"]) for _ in range(n))


def files_of(folder):
    """What every file of a prepared folder holds, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def documents_in(store, split):
    """The documents of a split, decoded by its index."""
    coder = store.tokenizer
    texts = []
    start = 0
    for end in store.document_ends(split).tolist():
        ids = store.tokens(split)[start:end].tolist()
        if coder.end_of_text is not None:
            assert ids.pop() == coder.end_of_text
        texts.append(coder.decode(ids))
        start = end
    assert start == store.n_tokens(split)
    return texts


@pytest.mark.parametrize("build", BUILDERS)
def test_any_number_of_workers_writes_the_same_bytes(tmp_path, small_tasks, build):
    texts = [some_text(300, seed=i) for i in range(40)]
    folders = []
    for n_workers in (1, 2, 4):
        corpus = Documents(undecided=texts, val_fraction=0.1)
        store, is_new = prepare(corpus, build, tmp_path / str(n_workers), n_workers=n_workers)
        assert is_new
        folders.append(files_of(store.folder))
    assert folders[0] == folders[1] == folders[2]


@settings(max_examples=50, deadline=None)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1),
    fraction=st.floats(0.05, 0.95),
    build=st.sampled_from(BUILDERS[:2]),
)
def test_decoding_by_the_index_gives_the_documents_back(tmp_path_factory, texts, fraction, build):
    # The last character has one byte, so that the boundary lies before it.
    texts = [*texts[:-1], f"{texts[-1]}z"]
    n_bytes = len("".join(texts).encode())
    assume(int(n_bytes * (1 - fraction)) > 0)
    corpus = Documents(undecided=texts, val_fraction=fraction)
    store, _ = prepare(corpus, build, tmp_path_factory.mktemp("data"))

    train = documents_in(store, "train")
    val = documents_in(store, "val")
    assert store.n_bytes("train") + store.n_bytes("val") == n_bytes
    is_by_hash = [text for text in texts if first_byte(text) >= round(256 * fraction)] == train
    if is_by_hash and len(train) + len(val) == len(texts):
        assert sorted(train + val) == sorted(texts)
    else:  # by place
        assert "".join(train + val) == "".join(texts)


class InParts(Documents):
    """A corpus of one document in parts."""

    def documents(self):
        *texts, last = self.splits[None]
        for text in texts:
            yield Document(None, text, ends=False)
        yield Document(None, last)


def test_a_document_in_many_parts_is_one_document_of_each_split(tmp_path, small_tasks):
    parts = [some_text(300, seed=i) for i in range(40)]
    store, _ = prepare(InParts(undecided=parts, val_fraction=0.1), tokenizer.byte, tmp_path)
    (train,) = documents_in(store, "train")
    (val,) = documents_in(store, "val")
    assert train + val == "".join(parts)
    assert train.endswith("\n")
    assert abs(len(val) / len(train + val) - 0.1) < 0.01


def test_many_short_documents_are_cut_into_several_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "MOST_PARTS", 10)
    texts = [f"Text {i}" for i in range(95)]
    numbers = [task.number for task in preparation.cut_tasks(Document("train", t) for t in texts)]
    assert numbers == list(range(10))
    store, _ = prepare(Documents(texts, ["held out"]), tokenizer.byte, tmp_path, n_workers=3)
    assert documents_in(store, "train") == texts


@pytest.mark.parametrize("n_workers", [1, 3, 8])
def test_results_and_errors_come_in_the_order_of_the_tasks(n_workers):
    tasks = [Task(i, [], n_bytes=i) for i in range(6)]

    def work(task, is_over):
        time.sleep(0.01 * (6 - task.number))
        if task.number in (4, 5):
            raise UserError(f"task {task.number}")
        return False

    results = in_order(work, tasks, n_workers)
    assert [next(results) for _ in range(4)] == [(i, False) for i in range(4)]
    with pytest.raises(UserError, match="task 4"):
        next(results)


class Failing(Documents):
    """Fails, or is interrupted, after its last document."""

    error = None

    def documents(self):
        yield from super().documents()
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "full")], ids=repr)
@pytest.mark.parametrize("n", [2, 60])  # two documents are divided by place
def test_an_interrupted_preparation_goes_on_and_leaves_nothing_behind(
    tmp_path, small_tasks, error, n
):
    corpus = Failing(undecided=[some_text(12_000 // n, seed=i) for i in range(n)], val_fraction=0.2)
    corpus.error = error
    n_calls = 0

    def bpe(documents):
        nonlocal n_calls
        n_calls += 1
        corpus.error = None  # the text fails when it is read to be encoded
        try:
            return tokenizer.bpe(documents, vocab_size=270)
        finally:
            corpus.error = error

    with pytest.raises(type(error)):
        prepare(corpus, bpe, tmp_path)
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".parts")
    assert len(list(left.glob("*.npz"))) > 1

    corpus.error = error = None
    n_before = n_calls
    notes = []
    store, _ = prepare(corpus, bpe, tmp_path, watcher=Watcher(on_note=notes.append))
    assert n_calls == n_before  # the tokenizer was kept
    assert any("had been tokenised by an earlier start" in note for note in notes)
    assert list(tmp_path.iterdir()) == [store.folder]

    fresh, _ = prepare(corpus, bpe, tmp_path / "fresh")
    assert files_of(fresh.folder) == files_of(store.folder)


def test_what_another_version_left_is_not_used(tmp_path, monkeypatch):
    corpus = Failing([some_text(900)], ["held out"])
    corpus.error = KeyboardInterrupt()
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "TASK", 2**10)
        patch.setattr(preparation, "__version__", "0.0")
        with pytest.raises(KeyboardInterrupt):
            prepare(corpus, tokenizer.byte, tmp_path)
    corpus.error = None
    store, _ = prepare(corpus, tokenizer.byte, tmp_path)
    assert documents_in(store, "train") == corpus.splits["train"]


@pytest.mark.parametrize(
    ("train", "val", "error", "said"),
    [
        (["text"], ["more"], UserError("not UTF-8"), "not UTF-8"),
        ([""], ["a"], None, "the train split must hold text, got none"),
        (["a"], [], None, "the val split must hold text, got none"),
    ],
)
def test_a_mistake_in_the_text_leaves_nothing_behind(tmp_path, train, val, error, said):
    corpus = Failing(train, val)
    corpus.error = error
    with pytest.raises(UserError, match=said):
        prepare(corpus, tokenizer.byte, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_was_prepared_by_an_earlier_version_is_prepared_anew(tmp_path):
    notes = []
    (tmp_path / "given-byte-aaa").mkdir()
    (tmp_path / "given-byte-aaa" / "meta.json").write_text('{"format": 2, "fingerprint": ""}')
    _, is_new = prepare(
        Documents(["text"], ["more"]),
        tokenizer.byte,
        tmp_path,
        watcher=Watcher(on_note=notes.append),
    )
    (note,) = notes
    assert is_new
    assert note.startswith("texts that gptmini 0.2 prepared, as ")


KILLED = """
import sys
from gptmini import tokenizer
from gptmini.data import Corpus, Document, preparation, prepare

preparation.TASK = 2**14

class Words(Corpus):
    name = "words"
    val_fraction = 0.1

    def identity(self, digest_of):
        return {}

    def documents(self):
        for i in range(100):
            yield Document(None, "".join(f"{i * j} caf\\u00e9\\n" for j in range(300)))

prepare(Words(), tokenizer.character, sys.argv[1], n_workers=2)
"""


@pytest.mark.slow
def test_kills_at_random_instants_change_nothing(tmp_path):
    draw = random.Random(0)
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    began = time.monotonic()
    subprocess.run(command, check=True)
    seconds = time.monotonic() - began
    (folder,) = tmp_path.glob("words-*")
    wanted = files_of(folder)

    n_kills = 0
    while n_kills < 3:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        while True:
            process = subprocess.Popen(command)
            time.sleep(draw.uniform(0.3, 1) * seconds)
            if process.poll() is not None:
                break
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            n_kills += 1
        assert process.returncode == 0
        assert files_of(folder) == wanted
        assert {path.name for path in tmp_path.iterdir()} <= {folder.name, f".{folder.name}.lock"}


def test_who_comes_second_waits_and_opens_what_the_first_has_prepared(tmp_path):
    corpus = Documents(["text"], ["more"])
    first, _ = prepare(corpus, tokenizer.byte, tmp_path / "elsewhere")
    folder = tmp_path / "data" / first.folder.name
    folder.parent.mkdir()
    notes = Queue()
    with ThreadPoolExecutor(1) as second:
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            watcher = Watcher(on_note=notes.put)
            opened = second.submit(prepare, corpus, tokenizer.byte, folder.parent, watcher=watcher)
            said = f"another process prepares {folder}; waiting for it"
            assert notes.get(timeout=30) == said
            first.folder.rename(folder)
        store, written = opened.result()
    assert (store.folder, written) == (folder, False)
    assert list(folder.parent.iterdir()) == [folder]


def test_memory_does_not_grow_with_a_document(tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "TASK", 2**16)
    peaks = []
    for n_parts in (1, 20, 200):  # of 11,000 bytes; the first time, libraries are loaded
        texts = ["some words " * 1000] * n_parts
        corpus = InParts(undecided=texts, val_fraction=0.1, source={"parts": n_parts})
        tracemalloc.start()
        prepare(corpus, tokenizer.byte, tmp_path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        peaks.append(peak)
    assert peaks[2] < peaks[1] + 2e5 < 180 * 11_000


class TextFile(Documents):
    """A corpus of one file."""

    def __init__(self, path):
        super().__init__(undecided=(), val_fraction=0.5)
        self.path = path

    def identity(self, digest_of):
        return {"file": digest_of(self.path)}

    def documents(self):
        yield Document(None, self.path.read_text())


@pytest.mark.parametrize("when", ["learning", "encoding"])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, when):
    file = tmp_path / "a.txt"
    file.write_text("some text " * 99)

    def changed(*told):
        file.write_text(file.read_text() + "more")

    def byte(documents):
        if when == "learning":
            changed()
        return tokenizer.byte(documents)

    watcher = Watcher(on_progress=changed)
    with pytest.raises(UserError, match=r"a\.txt must stay as it is while it is read, and it was"):
        prepare(TextFile(file), byte, tmp_path / "data", watcher=watcher)
    assert list((tmp_path / "data").iterdir()) == []


def test_a_changed_text_is_never_taken_for_the_prepared_one(tmp_path):
    file = tmp_path / "a.txt"
    for text in ("some text", "SOME TEXT"):
        file.write_text(text)
        os.utime(file, (1, 1))
        store, is_new = prepare(TextFile(file), tokenizer.byte, tmp_path / "data")
        assert is_new
        assert documents_in(store, "train") + documents_in(store, "val") == [text[:4], text[4:]]


@pytest.fixture
def settled(monkeypatch):
    """Take every file for one that was last changed long ago; no program can set that time."""
    monkeypatch.setattr(preparation, "SETTLING", -3600)


def digest_of(cache, file):
    """The digest of a file, as the next process is given it."""
    known = Digests(cache)
    digest = known.of(file)
    known.save()
    return digest


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_file_is_not_read_again_until_it_changes(tmp_path, settled, monkeypatch):
    file = tmp_path / "a.txt"
    file.write_text("some text")
    assert digest_of(tmp_path / "cache", file) == sha256("some text")
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", None)  # it would be called to read the file
        assert digest_of(tmp_path / "cache", file) == sha256("some text")

    # The same size, and a time of change that is set back.
    before = file.stat()
    time.sleep(0.02)  # the file system's clock goes on in steps of a few milliseconds
    file.write_text("SOME TEXT")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest_of(tmp_path / "cache", file) == sha256("SOME TEXT")


def test_the_digest_of_a_file_that_was_just_written_is_not_kept(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("some text")
    assert digest_of(tmp_path / "cache", file) == sha256("some text")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("kept", ["{", "\0", "a digest of gptmini 0.2"])
def test_digests_that_are_of_no_use_are_made_anew(tmp_path, settled, kept):
    file = tmp_path / "a.txt"
    file.write_text("some text")
    of_other_version = json.dumps({str(file): [9, 1, 2, 3, kept]})
    (tmp_path / "cache").write_text(of_other_version if "digest" in kept else kept)
    assert digest_of(tmp_path / "cache", file) == sha256("some text")
