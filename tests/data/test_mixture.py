"""Mixtures: one tokenizer for all sources, and their concatenated tokens."""

import shutil

import numpy as np
import pytest

from gptmini import tokenizer
from gptmini.data import Mixture, TextCorpus, TokenStore, prepare
from gptmini.data.prepared.store import TokenSource, tokens_per_byte_of
from gptmini.system.errors import UserError


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "a.txt").write_text("aab " * 50)
    (tmp_path / "b.txt").write_text("xyz " * 30)
    return tmp_path


def sources(folder, **others):
    """Two texts with their weights."""
    return {
        "one": {"path": str(folder / "a.txt"), "weight": 3},
        "two": {"path": str(folder / "b.txt"), "weight": 1},
    } | others


def mixed(given, folder, build=tokenizer.byte, **more):
    """Prepare a mixture; return its store, and whether it was written now."""
    return prepare(Mixture(given, 0.1), build, folder / "data", **more)


def test_texts_are_prepared_under_one_tokenizer(texts):
    store, written = mixed(sources(texts), texts, tokenizer.character)

    assert written
    assert store.tokenizer.characters == " abxyz"
    assert store.sources == [TokenSource("one", 3, 181), TokenSource("two", 1, 109)]
    end = "<|endoftext|>"
    text = store.tokenizer.decode(store.tokens("train")[:].tolist())
    assert text == "aab " * 45 + end + "xyz " * 27 + end
    assert store.n_tokens("train") == len(store.tokens("train")) == 290
    assert store.n_bytes("val") == 20 + 12
    store.verify()
    store.check_size("train")

    again, written = mixed(sources(texts), texts, tokenizer.character)
    assert not written
    assert again.fingerprint == store.fingerprint


def test_other_weights_are_another_mixture_of_the_same_folders(texts):
    first, _ = mixed(sources(texts), texts)
    second, _ = mixed(sources(texts, two={"path": str(texts / "b.txt"), "weight": 2}), texts)
    assert first.fingerprint != second.fingerprint
    names = sorted(path.name.partition("-")[0] for path in (texts / "data").glob("[!.]*"))
    assert names == ["mixture", "mixture", "one", "two"]


def test_a_validation_reads_of_each_source_as_its_weight_says(texts):
    store, _ = mixed(sources(texts), texts)
    # The held-out texts have 21 and 13 ids. The weights are 3 and 1.
    for most, wanted in ((8, [6, 2]), (400, [21, 7]), (None, [21, 7])):
        assert [excerpt.n_tokens for excerpt in store.excerpts("val", most)] == wanted
    assert bytes(store.excerpts("val", 8)[1].ids[:4].tolist()) == b"xyz "
    tokens_per_byte = 8 / (6 * 20 / 21 + 2 * 12 / 13)
    assert tokens_per_byte_of(store.excerpts("val", 8)) == pytest.approx(tokens_per_byte)


def test_prepared_folders_are_taken_as_they_are(texts):
    prepared, _ = prepare(TextCorpus(texts / "a.txt", 0.1), tokenizer.byte, texts / "data")
    given = sources(texts, old={"path": str(prepared.folder), "weight": 5})
    store, _ = mixed(given, texts)
    assert store.sources[2] == TokenSource("old", 5, prepared.n_tokens("train"))
    last = store.tokens("train")[np.arange(-5, 0) + store.n_tokens("train")]
    assert last.tolist() == [*b"aab ", 256]

    said = r"tokenizer byte, .* character; set tokenizer=byte"
    with pytest.raises(UserError, match=said):
        mixed(given, texts, tokenizer.character)


def test_a_source_that_holds_other_tokens_now_is_noticed(texts):
    mixture, _ = mixed(sources(texts), texts)
    (one,) = (texts / "data").glob("one-*")
    (two,) = (texts / "data").glob("two-*")
    shutil.rmtree(one)
    two.rename(one)
    with pytest.raises(UserError, match=r"has changed since the mixture .*; delete"):
        TokenStore(mixture.folder)


def test_what_was_deleted_is_prepared_again_and_what_was_moved_is_found(texts):
    prepared, _ = prepare(TextCorpus(texts / "a.txt", 0.1), tokenizer.byte, texts / "old")
    two = {"path": str(texts / "b.txt"), "weight": 1}
    first, _ = mixed({"old": {"path": str(prepared.folder), "weight": 5}, "two": two}, texts)
    wanted = first.tokens("train")[:].tolist()

    (folder_of_two,) = (texts / "data").glob("two-*")
    shutil.rmtree(folder_of_two)
    prepared.folder.rename(texts / "moved")
    moved = {"path": str(texts / "moved"), "weight": 5}
    again, is_new = mixed({"old": moved, "two": two}, texts)
    assert is_new
    assert again.folder == first.folder
    assert again.tokens("train")[:].tolist() == wanted


def test_a_source_that_cannot_be_mixed_is_refused(texts):
    mixture, _ = mixed(sources(texts), texts)
    with pytest.raises(UserError, match=r"data\.sources\.a\.path must .* the mixture "):
        Mixture({"a": {"path": str(mixture.folder), "weight": 1}}, 0.1)
    (one,) = (texts / "data").glob("one-*")
    given = {"a": {"path": str(one), "weight": 1, "val_fraction": 0.5}}
    with pytest.raises(UserError, match=r"may have only path and weight, got val_"):
        Mixture(given, 0.1)
