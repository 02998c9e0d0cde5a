"""Preparation: the same files from any number of workers, after any interruption, in bounded memory, never stale."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gptmini import tokenizer
from gptmini.data import Document, Watcher, preparation, prepare
from gptmini.data.preparation import Digests, Task, in_order
from gptmini.data.store import FORMAT
from gptmini.user_error import UserError
from toys import Documents


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


BUILDERS = [tokenizer.byte, tokenizer.character, partial(tokenizer.bpe, vocab_size=300)]


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


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1),
    fraction=st.floats(0.05, 0.95),
    build=st.sampled_from(BUILDERS),
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


def first_byte(text):
    return hashlib.sha256(text.encode()).digest()[0]


class Parts(Documents):
    """A corpus of one document in parts."""

    def documents(self):
        *parts, last = self.splits[None]
        for part in parts:
            yield Document(None, part, ends=False)
        yield Document(None, last)


def test_a_document_in_many_parts_is_one_document_of_each_split(tmp_path, small_tasks):
    parts = [some_text(300, seed=i) for i in range(40)]
    store, _ = prepare(Parts(undecided=parts, val_fraction=0.1), tokenizer.byte, tmp_path)
    (train,) = documents_in(store, "train")
    (val,) = documents_in(store, "val")
    assert train + val == "".join(parts)
    assert train.endswith("\n")
    assert abs(len(val) / len(train + val) - 0.1) < 0.01


class Failing(Documents):
    """Fails, or is interrupted, after its last document."""

    error = None

    def documents(self):
        yield from super().documents()
        if self.error is not None:
            raise self.error


class Bpe:
    """A builder that is counted, and reads the text without the corpus's error."""

    def __init__(self, corpus):
        self.corpus = corpus
        self.n_calls = 0
        self.__name__ = "bpe"

    def __call__(self, documents):
        self.n_calls += 1
        error, self.corpus.error = self.corpus.error, None
        try:
            return tokenizer.bpe(documents, vocab_size=270)
        finally:
            self.corpus.error = error


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), MemoryError(), OSError(28, "full")], ids=repr
)
@pytest.mark.parametrize("n", [2, 60])  # two documents are divided by place
def test_an_interrupted_preparation_goes_on_and_leaves_nothing_behind(
    tmp_path, small_tasks, error, n
):
    corpus = Failing(undecided=[some_text(12_000 // n, seed=i) for i in range(n)], val_fraction=0.2)
    corpus.error = error
    build = Bpe(corpus)
    with pytest.raises(type(error)):
        prepare(corpus, build, tmp_path)
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".parts")
    assert len(list(left.glob("*.npz"))) > 1

    corpus.error = None
    n_calls = build.n_calls
    notes = []
    store, _ = prepare(corpus, build, tmp_path, watcher=Watcher(on_note=notes.append))
    assert build.n_calls == n_calls  # the tokenizer was kept
    assert any("had been tokenised by an earlier start" in note for note in notes)
    assert list(tmp_path.iterdir()) == [store.folder]

    fresh, _ = prepare(corpus, build, tmp_path / "fresh")
    assert files_of(fresh.folder) == files_of(store.folder)


def test_what_another_version_left_is_not_used(tmp_path, small_tasks, monkeypatch):
    corpus = Failing([some_text(9000)], ["held out"])
    corpus.error = KeyboardInterrupt()
    monkeypatch.setattr(preparation, "TASK", 2**10)
    monkeypatch.setattr(preparation, "__version__", "0.0")
    with pytest.raises(KeyboardInterrupt):
        prepare(corpus, tokenizer.byte, tmp_path)
    monkeypatch.undo()
    corpus.error = None
    store, _ = prepare(corpus, tokenizer.byte, tmp_path)
    assert documents_in(store, "train") == corpus.splits["train"]


def test_a_mistake_in_the_text_leaves_nothing_behind(tmp_path):
    corpus = Failing(["some text"], ["more"])
    corpus.error = UserError("not UTF-8")
    with pytest.raises(UserError, match="not UTF-8"):
        prepare(corpus, tokenizer.byte, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("train", "val"), [([], ["a"]), (["a"], []), ([""], ["a"])])
def test_a_split_without_text_is_refused_and_leaves_nothing_behind(tmp_path, train, val):
    split = "val" if train == ["a"] else "train"
    with pytest.raises(UserError, match=f"the {split} split must hold text, got none"):
        prepare(Documents(train, val), tokenizer.character, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_document_that_does_not_end_is_refused(tmp_path):
    class Endless(Documents):
        def documents(self):
            yield Document("train", "to be continued", ends=False)

    with pytest.raises(UserError, match="the last part of a corpus must end its document"):
        prepare(Endless(), tokenizer.byte, tmp_path)


def test_many_short_documents_are_cut_into_several_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "MOST_PARTS", 10)
    texts = [f"Text {i}" for i in range(95)]
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


def test_a_text_that_was_prepared_by_an_earlier_version_is_prepared_anew(tmp_path):
    corpus = Documents(["text"], ["more"])
    notes = []
    for name in ("given-byte-aaa", "given-byte-bbb", "given-character-ccc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.json").write_text('{"format": 2, "fingerprint": ""}')
    prepare(corpus, tokenizer.byte, tmp_path, watcher=Watcher(on_note=notes.append))
    assert len(notes) == 1
    assert notes[0].startswith("texts that gptmini 0.2 prepared, as ")

    others = Documents(["other text"], ["more"])
    (tmp_path / "given-byte-aaa" / "meta.json").write_text('{"another": "program"}')
    meta = {"format": FORMAT, "fingerprint": ""}
    (tmp_path / "given-byte-bbb" / "meta.json").write_text(json.dumps(meta))
    prepare(others, tokenizer.byte, tmp_path, watcher=Watcher(on_note=notes.append))
    assert len(notes) == 1


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
        for i in range(400):
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
    while n_kills < 20:
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


RACER = """
import sys, time
from pathlib import Path
from gptmini import tokenizer
from gptmini.data import Watcher, prepare
from toys import Documents

meeting, me = Path(sys.argv[1]), sys.argv[2]

def byte(documents):  # the other process looks for the folder before this one has written it
    deadline = time.monotonic() + 30
    while len(list(meeting.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.5)
    return tokenizer.byte(documents)

(meeting / me).touch()
corpus = Documents(["0123456789" * 27], ["held out"])
store, written = prepare(corpus, byte, sys.argv[3], watcher=Watcher(on_note=print))
print(store.folder, store.n_tokens("train"), written)
"""


def test_two_processes_at_once_make_one_folder(tmp_path, monkeypatch):
    tests = str(Path(__file__).parent.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")]))
    (tmp_path / "meeting").mkdir()
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, tmp_path / "meeting", name, tmp_path / "data"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    ends = [racer.communicate(timeout=60) for racer in racers]
    (folder,) = (tmp_path / "data").iterdir()

    said = sorted(output.splitlines()[-1] for output, _ in ends)
    assert said == [f"{folder} 271 False", f"{folder} 271 True"]
    assert [errors for _, errors in ends] == ["", ""]
    (waiting,) = [output for output, _ in ends if output.endswith("False\n")]
    assert waiting.startswith(f"another process prepares {folder}; waiting for it\n")


MEMORY = """
import resource, sys
from gptmini import tokenizer
from gptmini.data import Corpus, Document, preparation, prepare

preparation.TASK = 2**20

class Lines(Corpus):
    name = "lines"
    val_fraction = 0.1

    def identity(self, digest_of):
        return {}

    def boundary(self):
        return int(sys.argv[2]) * 9 // 10

    def documents(self):
        part = "some words " * 5957
        for _ in range(int(sys.argv[2]) // len(part)):
            yield Document(None, part, ends=False)
        yield Document(None, "the end")

prepare(Lines(), tokenizer.byte, sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_a_document(tmp_path):
    kilobytes = []
    for n_bytes in (8_000_000, 80_000_000):
        command = [sys.executable, "-c", MEMORY, tmp_path / str(n_bytes), str(n_bytes)]
        result = subprocess.run(command, capture_output=True, check=True)
        kilobytes.append(int(result.stdout))
    assert kilobytes[1] < kilobytes[0] + 15_000


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
    corpus = TextFile(file)

    def changed(*told):
        file.write_text(file.read_text() + "more")

    def byte(documents):
        if when == "learning":
            changed()
        return tokenizer.byte(documents)

    watcher = Watcher(on_progress=changed)
    with pytest.raises(UserError, match=r"a\.txt must stay as it is while it is read, and it was"):
        prepare(corpus, byte, tmp_path / "data", watcher=watcher)
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
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert digest_of(tmp_path / "cache", file) == sha256("SOME TEXT")


def test_the_digest_of_a_file_that_was_just_written_is_not_kept(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("some text")
    digest_of(tmp_path / "cache", file)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("rows", ["", "{", "\0", {"a.txt": [9, 1, 2, 3, "digest of 0.2"]}])
def test_digests_that_are_of_no_use_are_made_anew(tmp_path, settled, rows):
    file = tmp_path / "a.txt"
    file.write_text("some text")
    if isinstance(rows, dict):
        rows = json.dumps({str(file): rows["a.txt"]})
    (tmp_path / "cache").write_text(rows)
    assert digest_of(tmp_path / "cache", file) == sha256("some text")


def test_a_folder_that_cannot_be_written_keeps_no_digests(tmp_path, settled):
    file = tmp_path / "a.txt"
    file.write_text("some text")
    assert digest_of(tmp_path / "gone" / "cache", file) == sha256("some text")
    assert not (tmp_path / "gone").exists()
