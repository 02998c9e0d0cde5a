"""Preparation: equal files for any number of workers and after any interruption, bounded memory, no stale files."""

import hashlib
import multiprocessing
import os
import random
import shutil
import signal
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
from gptmini.console.progress import Watcher
from gptmini.data import Document, TextCorpus, prepare
from gptmini.data.prepared import digests, task_files, tasks
from gptmini.data.prepared.digests import Digests
from gptmini.system.errors import UserError
from toys import Documents

BUILDERS = [tokenizer.byte, tokenizer.character, partial(tokenizer.bpe, vocab_size=300)]


@pytest.fixture
def small_tasks(monkeypatch):
    """Make tasks so small that a short text has many tasks."""
    monkeypatch.setattr(tasks, "TASK", 2**12)


def some_text(n, seed=0):
    """n words of a few alphabets, some in many bytes, with line ends between."""
    draw = random.Random(seed)
    words = ["the", "caf\u00e9", "\u65e5\u672c", "\U0001f600", "x1,", "<|endoftext|>", "don't"]
    return "".join(draw.choice(words) + draw.choice([" ", "  ", "\n", "\r\n"]) for _ in range(n))


def files_of(folder):
    """Return the content of every file of a prepared folder, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def documents_in(store, split):
    """Decode the documents of a split with its index."""
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


@pytest.mark.slow
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


@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1),
    fraction=st.floats(0.05, 0.95),
    build=st.sampled_from(BUILDERS[:2]),
)
def test_decoding_by_the_index_gives_the_documents_back(tmp_path_factory, texts, fraction, build):
    # The last character has one byte, so that the boundary is before it.
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


class Failing(Documents):
    """Raises an error after its last document, if it has one."""

    error = None

    def documents(self):
        yield from super().documents()
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("n", [2, 60])  # two documents are divided by place
def test_an_interrupted_preparation_goes_on_and_leaves_nothing_behind(tmp_path, small_tasks, n):
    error = KeyboardInterrupt()
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

    with pytest.raises(KeyboardInterrupt):
        prepare(corpus, bpe, tmp_path)
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".parts")
    assert len(list(left.glob("*.npz"))) > 1

    corpus.error = error = None
    n_before = n_calls
    notes = []
    store, _ = prepare(corpus, bpe, tmp_path, watcher=Watcher(on_note=notes.append))
    assert n_calls == n_before  # the tokenizer was loaded from disk
    assert any("parts were already tokenised" in note for note in notes)
    assert list(tmp_path.iterdir()) == [store.folder]

    fresh, _ = prepare(corpus, bpe, tmp_path / "fresh")
    assert files_of(fresh.folder) == files_of(store.folder)


def test_a_task_that_a_full_disk_cut_short_is_encoded_again(tmp_path, small_tasks, monkeypatch):
    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    corpus = Documents([some_text(300, seed=i) for i in range(9)], ["held out"])
    with monkeypatch.context() as patch:
        patch.setattr("numpy.savez", full)
        with pytest.raises(OSError, match="No space left"):
            prepare(corpus, tokenizer.byte, tmp_path)
    store, _ = prepare(corpus, tokenizer.byte, tmp_path)
    assert documents_in(store, "train") == corpus.splits["train"]


def test_what_another_version_left_is_not_used(tmp_path, monkeypatch):
    corpus = Failing([some_text(30, seed=i) for i in range(30)], ["held out"])
    corpus.error = KeyboardInterrupt()
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "TASK", 2**10)
        patch.setattr(task_files, "__version__", "0.0")
        with pytest.raises(KeyboardInterrupt):
            prepare(corpus, tokenizer.byte, tmp_path)
    corpus.error = None
    store, _ = prepare(corpus, tokenizer.byte, tmp_path)
    assert documents_in(store, "train") == corpus.splits["train"]


@pytest.mark.parametrize(
    ("train", "val", "error", "said"),
    [
        (["text"], ["more"], UserError("not UTF-8"), "not UTF-8"),
        ([""], ["a"], None, "the train split must contain text"),
        (["a"], [], None, "the val split must contain text"),
    ],
)
def test_a_mistake_in_the_text_leaves_nothing_behind(tmp_path, train, val, error, said):
    corpus = Failing(train, val)
    corpus.error = error
    with pytest.raises(UserError, match=said):
        prepare(corpus, tokenizer.byte, tmp_path)
    assert list(tmp_path.iterdir()) == []


def prepare_in_process(folder):
    """Start to prepare a text of many tasks in a separate process."""
    texts = ["".join(f"{i * j} caf\u00e9\n" for j in range(300)) for i in range(100)]
    corpus = Documents(undecided=texts, val_fraction=0.1)
    # A fork costs milliseconds; a new process would import libraries for a second.
    process = multiprocessing.get_context("fork").Process(
        target=prepare,
        args=(corpus, tokenizer.character, folder),
        kwargs={"n_workers": 2},
    )
    process.start()
    return process


@pytest.mark.slow
def test_kills_at_random_instants_change_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "TASK", 2**14)  # the text has twenty tasks
    began = time.monotonic()
    prepare_in_process(tmp_path).join()
    seconds = time.monotonic() - began
    (folder,) = tmp_path.glob("given-*")
    wanted = files_of(folder)

    draw = random.Random(0)
    n_kills = 0
    while n_kills < 6:
        shutil.rmtree(folder)
        process = prepare_in_process(tmp_path)
        while process.exitcode != 0:
            process.join(draw.uniform(0, 1) * seconds)
            process.kill()
            process.join()
            if process.exitcode != 0:
                assert process.exitcode == -signal.SIGKILL
                n_kills += 1
                process = prepare_in_process(tmp_path)
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
            said = f"waiting for another process that prepares {folder}"
            assert notes.get(timeout=30) == said
            first.folder.rename(folder)
        store, written = opened.result()
    assert (store.folder, written) == (folder, False)
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.slow
def test_memory_does_not_grow_with_a_document(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "TASK", 2**16)
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


def test_a_text_is_prepared_once_under_any_name_of_its_folder(tmp_path):
    def prepared(name):
        store, is_new = prepare(TextCorpus(tmp_path / name, 0.5), tokenizer.byte, tmp_path / "data")
        return store.folder.name, is_new

    for name in ("my.txt", "other.txt"):
        (tmp_path / name).write_text("some text " * 99)
    folder, is_new = prepared("my.txt")
    assert (folder[:8], is_new) == ("my-byte-", True)

    # The same bytes under another name, and the name that earlier versions gave to every text.
    assert prepared("other.txt") == (folder, False)
    old = f"text-{folder.removeprefix('my-')}"
    (tmp_path / "data" / folder).rename(tmp_path / "data" / old)
    assert prepared("my.txt") == (old, False)


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
    with pytest.raises(UserError, match=r"a\.txt must not change"):
        prepare(TextCorpus(file, 0.5), byte, tmp_path / "data", watcher=watcher)
    assert list((tmp_path / "data").iterdir()) == []


def digest_of(cache, file):
    """Return the digest of a file as the next process would."""
    known = Digests(cache)
    digest = known.of(file)
    known.save()
    return digest


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_file_is_not_read_again_until_it_changes(tmp_path, monkeypatch):
    # Treat every file as changed long ago, because no program can set the change time.
    monkeypatch.setattr(digests, "SETTLING", -3600)
    file = tmp_path / "a.txt"
    file.write_text("some text")
    assert digest_of(tmp_path / "cache", file) == sha256("some text")
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", None)  # it would be called to read the file
        assert digest_of(tmp_path / "cache", file) == sha256("some text")

    # The same size, and a modification time that is set back.
    before = file.stat()
    time.sleep(0.02)  # the file system's clock has a resolution of a few milliseconds
    file.write_text("SOME TEXT")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest_of(tmp_path / "cache", file) == sha256("SOME TEXT")


def test_the_digest_of_a_file_that_was_just_written_is_not_kept(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "cache").write_text("{")  # a damaged cache is ignored
    assert digest_of(tmp_path / "cache", tmp_path / "a.txt") == sha256("some text")
    assert (tmp_path / "cache").read_text() == "{"


def test_tasks_of_wrong_splits_that_cannot_be_deleted_end_the_preparation(tmp_path, monkeypatch):
    # Hashes put the long line into one split, far from val_fraction. The splits change after the first reading.
    (tmp_path / "my.txt").write_text("\n".join(["x y " * 3000, *map(str, range(40))]))
    corpus = TextCorpus(str(tmp_path / "my.txt"), separator="\n", val_fraction=0.1)
    delete = shutil.rmtree

    def refuse(path, ignore_errors=False):
        if not ignore_errors:
            raise PermissionError(13, "in use", str(path))
        if not str(path).endswith(".parts"):
            delete(path, ignore_errors=True)

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(PermissionError, match="in use"):
        prepare(corpus, tokenizer.byte, tmp_path / "prepared")
