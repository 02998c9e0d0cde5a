"""Preparation: the same files from any number of workers, after any interruption, in the same splits."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gptmini import tokenizer
from gptmini.data import Document
from gptmini.data.preparation import Watcher, prepare
from gptmini.data.text_corpus import TextCorpus
from gptmini.user_error import UserError
from toys import Documents


@pytest.fixture
def small_tasks(monkeypatch):
    """Let tasks and pieces be so small that a short text has many."""
    monkeypatch.setattr("gptmini.data.preparation.tasks.TASK", 2**12)
    monkeypatch.setattr("gptmini.data.sources.reading.PIECE", 2**9)


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
    coder = tokenizer.from_dict(store.tokenizer_state)
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


BUILDERS = {
    "byte": tokenizer.byte,
    "char": tokenizer.character,
    "bpe": partial(tokenizer.bpe, vocab_size=300),
}


@pytest.mark.parametrize("name", [*BUILDERS, "gpt2"])
def test_a_document_of_many_pieces_has_the_ids_of_the_whole(tmp_path, small_tasks, name):
    text = some_text(9000)
    (tmp_path / "a.txt").write_bytes(text.encode())
    build = BUILDERS.get(name, tokenizer.gpt2)
    if name == "gpt2" and "TIKTOKEN_CACHE_DIR" not in os.environ:
        pytest.skip("TIKTOKEN_CACHE_DIR does not name a folder with tiktoken's two files of gpt2")
    store, _ = prepare(TextCorpus(tmp_path / "a.txt", 0.1), build, tmp_path / "data")

    boundary = int(len(text) * 0.9)
    coder = tokenizer.from_dict(store.tokenizer_state)
    end = [] if coder.end_of_text is None else [coder.end_of_text]
    assert store.tokens("train").tolist() == coder.encode(text[:boundary]) + end
    assert store.tokens("val").tolist() == coder.encode(text[boundary:]) + end
    assert store.n_bytes("train") == len(text[:boundary].encode())
    assert store.n_bytes("val") == len(text[boundary:].encode())


@pytest.mark.parametrize("n_documents", [1, 2, 40])
def test_any_number_of_workers_writes_the_same_bytes(tmp_path, small_tasks, n_documents):
    (tmp_path / "texts").mkdir()
    for i in range(n_documents):
        text = some_text(20000 // n_documents, seed=i)
        (tmp_path / "texts" / f"{i:02}.txt").write_bytes(text.encode())

    folders = []
    for n_workers in (1, 2, 8):
        corpus = TextCorpus(tmp_path / "texts", 0.1)
        root = tmp_path / str(n_workers)
        store, _ = prepare(corpus, tokenizer.byte, root, n_workers=n_workers)
        folders.append(files_of(store.folder))
    assert folders[0] == folders[1] == folders[2]


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1),
    fraction=st.floats(0.05, 0.95),
    data=st.data(),
)
def test_decoding_by_the_index_gives_the_documents_back(tmp_path_factory, texts, fraction, data):
    build = data.draw(st.sampled_from([*BUILDERS.values()]))
    corpus = Documents(
        [], [], name="drawn", source={"corpus": "drawn", "texts": [*texts, fraction]}
    )
    corpus.splits = {None: texts}
    corpus.val_fraction = fraction
    root = tmp_path_factory.mktemp("data")
    assume(0 < int(len("".join(texts)) * (1 - fraction)) < len("".join(texts)))
    store, _ = prepare(corpus, build, root)

    train = documents_in(store, "train")
    val = documents_in(store, "val")
    by_hash = [text for text in texts if first_byte(text) >= round(256 * fraction)]
    if len(train) + len(val) == len(texts) and train == by_hash:
        assert sorted(train + val) == sorted(texts)
    else:  # by position
        assert "".join(train + val) == "".join(texts)
        assert len("".join(train)) == int(len("".join(texts)) * (1 - fraction))


def first_byte(text):
    return hashlib.sha256(text.encode()).digest()[0]


def test_two_files_are_divided_by_position_and_said_to_be(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 70)
    (tmp_path / "b.txt").write_text("b" * 30)
    notes = []
    corpus = TextCorpus(tmp_path / "?.txt", 0.1)
    watcher = Watcher(on_note=notes.append)
    store, _ = prepare(corpus, tokenizer.byte, tmp_path / "data", watcher=watcher)

    assert documents_in(store, "train") == ["a" * 70, "b" * 20]
    assert documents_in(store, "val") == ["b" * 10]
    (note,) = notes
    assert note.startswith("the last 10% of the text is held out, which cuts a document in two")


@pytest.mark.parametrize(
    ("sizes", "fraction", "train", "val"),
    [
        ((50, 50), 0.5, ["a" * 50], ["b" * 50]),  # the boundary lies between the documents
        ((50, 50), 0.75, ["a" * 25], ["a" * 25, "b" * 50]),
        ((60, 40), 0.1, ["a" * 60, "b" * 30], ["b" * 10]),
    ],
)
def test_a_boundary_lies_anywhere(tmp_path, monkeypatch, sizes, fraction, train, val):
    monkeypatch.setattr(
        "gptmini.data.preparation.splits.TOLERANCE", -1
    )  # no share of hashes is near enough
    corpus = Documents([], [], source={"corpus": "given", "sizes": sizes})
    corpus.splits = {None: [letter * n for letter, n in zip("ab", sizes, strict=True)]}
    corpus.val_fraction = fraction
    store, _ = prepare(corpus, tokenizer.byte, tmp_path)
    assert documents_in(store, "train") == train
    assert documents_in(store, "val") == val


class Failing(Documents):
    """Fails, or is interrupted, after its last document."""

    def documents(self):
        yield from super().documents()
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), MemoryError(), OSError(28, "full")], ids=repr
)
def test_an_interrupted_preparation_goes_on_and_leaves_nothing_behind(tmp_path, small_tasks, error):
    texts = [some_text(200, seed=i) for i in range(30)]
    corpus = Failing(texts, [some_text(200, seed=99)])
    corpus.error = error
    build = partial(tokenizer.bpe, vocab_size=270)
    calls = []

    def bpe(documents, *, vocab_size):
        calls.append(vocab_size)
        corpus.error = None
        built = build(documents)
        corpus.error = error if len(calls) == 1 else None
        return built

    again = partial(bpe, vocab_size=270)
    with pytest.raises(type(error)):
        prepare(corpus, again, tmp_path, rebuild=tokenizer.from_dict)
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".parts")

    corpus.error = None
    notes = []
    watcher = Watcher(on_note=notes.append)
    store, _ = prepare(corpus, again, tmp_path, rebuild=tokenizer.from_dict, watcher=watcher)
    assert calls == [270]  # the tokenizer was kept
    assert "had been tokenised by an earlier start" in notes[0]
    assert list(tmp_path.iterdir()) == [store.folder]

    fresh, _ = prepare(corpus, again, tmp_path / "fresh")
    assert files_of(fresh.folder) == files_of(store.folder)


def test_a_mistake_in_the_text_leaves_nothing_behind(tmp_path):
    corpus = Failing(["some text"], ["more"])
    corpus.error = UserError("not UTF-8")
    with pytest.raises(UserError, match="not UTF-8"):
        prepare(corpus, tokenizer.byte, tmp_path)
    assert list(tmp_path.iterdir()) == []


DAMAGES = {
    "part cut short": lambda part, marker: part.write_bytes(part.read_bytes()[:-3]),
    "part gone": lambda part, marker: part.unlink(),
    "part of other ids": lambda part, marker: part.write_bytes(b"\1" * part.stat().st_size),
    "marker empty": lambda part, marker: marker.write_text(""),
    "marker a list": lambda part, marker: marker.write_text("[]"),
    "marker of another text": lambda part, marker: marker.write_text(
        json.dumps(json.loads(marker.read_text()) | {"text_crc32": 5})
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_part_is_made_again(tmp_path, small_tasks, damage):
    corpus = Failing([some_text(200, seed=i) for i in range(30)], ["held out"])
    corpus.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        prepare(corpus, tokenizer.byte, tmp_path)

    (folder,) = tmp_path.iterdir()
    damage(folder / "000001.part", folder / "000001.json")
    corpus.error = None
    store, _ = prepare(corpus, tokenizer.byte, tmp_path)
    fresh, _ = prepare(corpus, tokenizer.byte, tmp_path / "fresh")
    assert files_of(fresh.folder) == files_of(store.folder)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("some text " * 99)

    def byte(documents):
        with file.open("a") as opened:
            opened.write("more")
        return tokenizer.byte(documents)

    with pytest.raises(UserError, match=r"a\.txt must stay as it is while it is read, and it was"):
        prepare(TextCorpus(file, 0.1), byte, tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_a_disk_without_room_is_told_before_the_work(tmp_path, small_tasks, monkeypatch):
    usage = type("Usage", (), {"free": 1_000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    (tmp_path / "a.txt").write_bytes(some_text(9000).encode())
    with pytest.raises(UserError, match=r"data must have about .* GB for tokens while they are"):
        prepare(TextCorpus(tmp_path / "a.txt", 0.1), tokenizer.byte, tmp_path / "data")
    (left,) = (tmp_path / "data").iterdir()  # what was done is kept

    monkeypatch.undo()
    store, _ = prepare(TextCorpus(tmp_path / "a.txt", 0.1), tokenizer.byte, tmp_path / "data")
    assert not left.exists()
    store.verify()


KILLED = """
import sys
from gptmini import tokenizer
from gptmini.data import TextCorpus, prepare, sources
from gptmini.data.preparation import tasks
tasks.TASK = 2**14
sources.reading.PIECE = 2**12
prepare(TextCorpus(sys.argv[1], 0.1), tokenizer.character, sys.argv[2], n_workers=2)
"""


@pytest.mark.slow
def test_kills_at_random_instants_change_nothing(tmp_path):
    (tmp_path / "texts").mkdir()
    for i in range(20):
        (tmp_path / "texts" / f"{i:02}.txt").write_bytes(some_text(20_000, seed=i).encode())
    draw = random.Random(0)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "texts"), str(tmp_path / "data")]
    began = time.monotonic()
    subprocess.run(command, check=True)
    seconds = time.monotonic() - began
    (folder,) = (tmp_path / "data").glob("text-*")
    wanted = files_of(folder)
    n_kills = 0
    for _ in range(6):
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
        assert {path.name for path in (tmp_path / "data").iterdir()} <= {
            folder.name,
            ".digests.json",
        }
    assert n_kills > 3


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
from gptmini.data.preparation import Watcher, prepare

meeting, me = Path(sys.argv[1]), sys.argv[2]

def byte(documents):  # the other process looks for the folder before this one has written it
    deadline = time.monotonic() + 30
    while len(list(meeting.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.5)
    return tokenizer.byte(documents)

(meeting / me).touch()
watcher = Watcher(on_note=print)
store, written = prepare(TextCorpus(sys.argv[3], 0.1), byte, sys.argv[4], watcher=watcher)
print(store.folder, store.n_tokens("train"), written)
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

    said = sorted(output.splitlines()[-1] for output, _ in ends)
    assert said == [f"{folder} 271 False", f"{folder} 271 True"]
    assert [errors for _, errors in ends] == ["", ""]
    (waiting,) = [output for output, _ in ends if output.endswith("False\n")]
    assert waiting.startswith(f"another process prepares {folder}; waiting for it\n")


def test_many_short_documents_are_cut_into_several_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr("gptmini.data.preparation.tasks.MOST_PARTS", 10)
    texts = [f"Text {i}" for i in range(95)]
    store, _ = prepare(Documents(texts, ["held out"]), tokenizer.byte, tmp_path, n_workers=3)
    assert documents_in(store, "train") == texts


class Endless(Documents):
    """Its last document goes on."""

    def documents(self):
        yield from super().documents()
        yield Document("train", "to be continued", ends=False)


def test_a_document_that_does_not_end_is_refused(tmp_path):
    with pytest.raises(UserError, match="the last part of a corpus must end its document"):
        prepare(Endless(["text"], ["held out"]), tokenizer.byte, tmp_path)


class Odd(Documents):
    """A corpus of a user's own that yields what it was given."""

    def documents(self):
        yield from self.splits["train"]


@pytest.mark.parametrize("build", [tokenizer.byte, tokenizer.character])
@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("text", "the documents of a corpus must be gptmini.data.Document, got 'text'"),
        (Document("test", "a"), "the split of a document must be train, val or None, got 'test'"),
        (Document(None, b"a"), "a document must have a str for its text .* got bytes and bool"),
        (Document(None, "a", None), "whether it ends, got str and NoneType"),
    ],
)
def test_a_corpus_that_yields_no_documents_is_refused(tmp_path, build, document, said):
    with pytest.raises(UserError, match=said):
        prepare(Odd([document], [], source={"corpus": "odd"}), build, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", [{"nothing": 1}, {"corpus": 7}, "mine"])
def test_a_corpus_without_a_name_in_its_identity_is_refused(tmp_path, source):
    with pytest.raises(UserError, match=r"identity\(\) of a corpus must be a dict with its name"):
        prepare(Documents(["a"], ["b"], source=source), tokenizer.byte, tmp_path)


def test_empty_documents_that_fill_a_task_are_prepared(tmp_path):
    class Half(Documents):
        def share_read(self):
            return 0.5

    corpus = Half([*([""] * (2**17 + 5)), "text"], ["held out"])
    store, _ = prepare(corpus, tokenizer.byte, tmp_path)
    assert store.n_bytes("train") == 4
