"""Learning byte pairs: which pairs, from which text, and in a process that does not outlive its parent."""

import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forked import forked
from gptmini import tokenizer
from gptmini.tokenizer import learning
from tokenizer.texts import WORDS, random_texts
from toys import documents_of


def learned(*texts, val=(), vocab_size=300):
    """Return the byte strings learned from training texts, in the order of their ids."""
    return tokenizer.bpe(documents_of(texts, val), vocab_size=vocab_size).ranks[256:]


def test_bpe_learns_the_most_frequent_pairs_of_the_training_split_first():
    text = "xyz " * 6 + "xyw " * 4
    # Seen 10, 9 and 5 times: no space precedes the first word.
    assert learned(text, vocab_size=256 + 3 + 1) == [b"xy", b" xy", b" xyz"]
    assert learned(text, val=["cdcd" * 99], vocab_size=260) == [b"xy", b" xy", b" xyz"]


def test_bpe_learns_the_same_merges_from_a_text_in_slices(monkeypatch):
    text = "".join(f"{' '.join(random_texts(3, seed=i))} the end of {WORDS}\n" for i in range(5))
    whole = learned(text)
    monkeypatch.setattr(learning, "SLICE", 500)
    assert learned(text) == whole


def memory_of_learning(text):
    """Return the peak memory of the learning process, in bytes on Linux."""
    learned(text)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="macOS counts in bytes, Windows not at all")
def test_bpe_takes_no_memory_that_grows_with_the_text(monkeypatch):
    monkeypatch.setattr(learning, "SLICE", 2**16)
    word = "abcdefghijklmnopqrstuvwxyz"
    text = "".join(f"{word[i % 26 :]}{i % 997} and {word[: i % 24]}\n" for i in range(4000))
    # Fork, so that the only child processes are those that learn.
    of_one = forked(memory_of_learning, text)
    of_many = forked(memory_of_learning, text * 25)
    # If the trainer gets the text at once, it takes 57 bytes of memory per byte of text.
    assert of_many - of_one < 10 * len(text * 25)


def many_words(n):
    """Return a text of n different words; merging its pairs takes long."""
    draw = random.Random(1)
    return " ".join("".join(draw.choices("abcdefghijklmnop", k=30)) for _ in range(n))


@pytest.fixture
def processes(monkeypatch):
    """The processes that a test starts."""
    started = []

    class Recorded(subprocess.Popen):
        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, **keywords)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    return started


@pytest.mark.slow
def test_an_interruption_while_byte_pairs_are_merged_ends_the_learning_at_once(processes):
    interrupted_at = 0.0

    def documents():
        yield from documents_of([many_words(50_000)])
        signal.setitimer(signal.ITIMER_REAL, 0.5)  # by then, only merging is left

    def interrupt(*_):
        nonlocal interrupted_at
        interrupted_at = time.monotonic()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            tokenizer.bpe(documents(), vocab_size=2**20)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - interrupted_at < 1
    assert processes[0].wait(timeout=5) == 1


def test_an_error_of_a_document_comes_through_and_ends_the_learning(processes):
    def documents():
        yield from documents_of(["some text"])
        raise ValueError("the second document is damaged")

    with pytest.raises(ValueError, match="the second document is damaged"):
        tokenizer.bpe(documents(), vocab_size=300)
    assert processes[0].wait(timeout=5) == 1


@pytest.mark.slow
@pytest.mark.parametrize("end", [bytes(8), b"\x09" + bytes(7) + b"half"], ids=["merging", "texts"])
def test_the_process_that_learns_ends_with_the_process_that_asked(end):
    """A killed process closes its pipe."""
    program = Path(learning.__file__).with_name("merging.py")
    text = many_words(50_000).encode()
    ended = subprocess.run(
        [sys.executable, program, "1000000"],
        input=len(text).to_bytes(8, "little") + text + end,
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, b"", b"")


class Read:
    """Documents that know the fraction read, and count how often they were read."""

    def __init__(self, texts):
        self.texts = texts
        self.n_read = 0
        self.n_times = 0

    def __iter__(self):
        self.n_times += 1
        self.n_read = 0
        for document in documents_of(self.texts, ["held out"]):
            self.n_read += 1
            yield document

    def share_read(self):
        return self.n_read / len(self.texts)


TEXTS = [f"text {i} of many texts, " * 20 + "\n" for i in range(2000)]
N_BYTES = sum(map(len, TEXTS))


def test_bpe_of_a_long_text_learns_from_a_sample_of_all_of_it():
    documents = Read(TEXTS)
    samples = [list(learning._training_slices(documents, N_BYTES // 10)) for _ in range(2)]
    assert samples[0] == samples[1]
    assert documents.n_times == 2
    assert 0.99 * N_BYTES / 10 < sum(map(len, samples[0])) < 1.01 * N_BYTES / 10

    places = [TEXTS.index(some) for some in samples[0]]
    n_of_tenths = [sum(place // 200 == tenth for place in places) for tenth in range(10)]
    assert sum(n_of_tenths) == len(places)
    assert min(n_of_tenths) > 10  # the expected number is 20, with a standard deviation of 4


def test_bpe_learns_from_all_of_a_short_text_and_the_beginning_of_one_of_unknown_size():
    for documents in (Read(TEXTS), documents_of(TEXTS)):
        assert list(learning._training_slices(documents, N_BYTES)) == TEXTS
    n_bytes = sum(map(len, TEXTS[:20]))
    assert list(learning._training_slices(documents_of(TEXTS), n_bytes)) == TEXTS[:20]
