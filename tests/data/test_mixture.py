"""Mixtures: one tokenizer for all sources, and their tokens one after the other."""

import shutil
from functools import partial

import numpy as np
import pytest

from gptmini import tokenizer
from gptmini.data import Watcher, prepare
from gptmini.data.mixture import Mixture
from gptmini.data.store import Source, TokenStore, tokens_per_byte_of
from gptmini.data.text_corpus import TextCorpus
from gptmini.user_error import UserError
from refusals import refused_keys
from toys import change_meta


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "a.txt").write_text("aab " * 50)
    (tmp_path / "b.txt").write_text("xyz " * 30)
    return tmp_path


def sources(folder, **others):
    """Two texts with their weights."""
    return {
        "one": {"path": str(folder / "a.txt"), "weight": 3},
        "two": {"path": str(folder / "b.txt"), "weight": 1, **others},
    }


def test_texts_are_prepared_under_one_tokenizer(texts):
    mixture = Mixture(sources(texts), 0.1)
    store, written = mixture.prepare(tokenizer.character, texts / "data")

    assert written
    assert tokenizer.from_dict(store.tokenizer_state).characters == " abxyz"
    assert store.sources == [Source("one", 3, 181), Source("two", 1, 109)]
    coder = tokenizer.from_dict(store.tokenizer_state)
    end = "<|endoftext|>"
    text = coder.decode(store.tokens("train")[:].tolist())
    assert text == "aab " * 45 + end + "xyz " * 27 + end
    assert store.n_tokens("train") == len(store.tokens("train")) == 290
    assert store.n_bytes("val") == 20 + 12

    again, written = Mixture(sources(texts), 0.1).prepare(tokenizer.character, texts / "data")
    assert not written
    assert again.fingerprint == store.fingerprint
    assert TokenStore(store.folder).sources == store.sources
    store.verify()
    store.check_size("train")


def test_bpe_learns_from_all_texts(texts):
    build = partial(tokenizer.bpe, vocab_size=300)
    store, _ = Mixture(sources(texts), 0.1).prepare(build, texts / "data")
    learned = tokenizer.from_dict(store.tokenizer_state).ranks[256:]
    assert any(set(token) & set(b"xyz") for token in learned)
    assert any(set(token) & set(b"ab") for token in learned)


def test_bpe_of_long_texts_learns_from_a_sample_of_each(texts):
    for name, word in (("a.txt", "aab "), ("b.txt", "xyz ")):
        (texts / name).write_text((word * 100 + "\n") * 25_000)  # 10 MB
    mixture = Mixture(sources(texts), 0.1)
    assert mixture.share_read() == 0
    build = partial(tokenizer.bpe, vocab_size=300, train_bytes=6_000_000)
    store, _ = mixture.prepare(build, texts / "data")
    learned = tokenizer.from_dict(store.tokenizer_state).ranks[256:]
    assert {bytes(token) for token in learned} & {b" x", b"xy", b"yz"}
    assert {bytes(token) for token in learned} & {b" a", b"aa", b"ab"}
    assert mixture.share_read() == 1


def test_a_note_names_its_source(texts):
    (texts / "b").mkdir()
    for i in range(2):  # too few files to be split by hash
        (texts / "b" / f"{i}.txt").write_text("xyz " * (10 + 50 * i))
    given = sources(texts) | {"two": {"path": str(texts / "b"), "weight": 1}}
    notes = []
    watcher = Watcher(on_note=notes.append)
    build = partial(tokenizer.bpe, vocab_size=300)
    Mixture(given, 0.1).prepare(build, texts / "data", watcher=watcher)
    (note,) = notes
    assert note.startswith("two: the last 10% of the text is held out")


def test_other_weights_are_another_mixture_of_the_same_folders(texts):
    first, _ = Mixture(sources(texts), 0.1).prepare(tokenizer.byte, texts / "data")
    others = sources(texts) | {"two": {"path": str(texts / "b.txt"), "weight": 2}}
    second, _ = Mixture(others, 0.1).prepare(tokenizer.byte, texts / "data")
    assert first.fingerprint != second.fingerprint
    names = sorted(path.name.partition("-")[0] for path in (texts / "data").glob("[!.]*"))
    assert names == ["mixture", "mixture", "one", "two"]


def test_a_validation_reads_of_each_source_as_its_weight_says(texts):
    store, _ = Mixture(sources(texts), 0.1).prepare(tokenizer.byte, texts / "data")
    assert [excerpt.n_tokens for excerpt in store.excerpts("val", 8)] == [6, 2]
    assert [excerpt.n_tokens for excerpt in store.excerpts("val", 400)] == [21, 7]
    assert [excerpt.n_tokens for excerpt in store.excerpts("val", None)] == [21, 7]
    assert bytes(store.excerpts("val", 8)[1].ids[:4].tolist()) == b"xyz "
    assert tokens_per_byte_of(store.excerpts("val", 8)) == pytest.approx(
        8 / (6 * 20 / 21 + 2 * 12 / 13)
    )


def test_prepared_folders_are_taken_as_they_are(texts):
    prepared, _ = prepare(TextCorpus(texts / "a.txt", 0.1), tokenizer.byte, texts / "data")
    given = sources(texts) | {"old": {"path": str(prepared.folder), "weight": 5}}
    store, _ = Mixture(given, 0.1).prepare(tokenizer.byte, texts / "data")
    assert store.sources[2] == Source("old", 5, prepared.n_tokens("train"))
    assert store.tokens("train")[np.arange(-5, 0) + store.n_tokens("train")].tolist() == [
        *b"aab ",
        256,
    ]

    with pytest.raises(
        UserError,
        match=r"got .* with that of byte, and character for the others; add tokenizer=byte",
    ):
        Mixture(given, 0.1).prepare(tokenizer.character, texts / "data")


def test_prepared_folders_of_several_vocabularies_are_refused(texts):
    given = {}
    for i, name in enumerate("ab"):
        corpus = TextCorpus(texts / f"{name}.txt", 0.1)
        store, _ = prepare(corpus, tokenizer.character, texts / "data")
        given[name] = {"path": str(store.folder), "weight": i + 1}
    with pytest.raises(UserError, match="with different ones; name their texts instead, to learn"):
        Mixture(given, 0.1).prepare(tokenizer.character, texts / "data")


def test_a_source_that_holds_other_tokens_now_is_noticed(texts):
    mixture, _ = Mixture(sources(texts), 0.1).prepare(tokenizer.byte, texts / "data")
    (one,) = (texts / "data").glob("one-*")
    change_meta(one, lambda meta: meta.update(fingerprint="0" * 64))
    with pytest.raises(UserError, match="which holds other tokens now"):
        TokenStore(mixture.folder)


def test_what_was_deleted_is_prepared_again_and_what_was_moved_is_found(texts):
    prepared, _ = prepare(TextCorpus(texts / "a.txt", 0.1), tokenizer.byte, texts / "old")

    def mixed(folder):
        given = {
            "old": {"path": str(folder), "weight": 5},
            "two": {"path": str(texts / "b.txt"), "weight": 1},
        }
        return Mixture(given, 0.1).prepare(tokenizer.byte, texts / "data")

    first, _ = mixed(prepared.folder)
    wanted = first.tokens("train")[:].tolist()
    (two,) = (texts / "data").glob("two-*")
    shutil.rmtree(two)
    prepared.folder.rename(texts / "moved")
    again, is_new = mixed(texts / "moved")
    assert is_new
    assert again.folder == first.folder
    assert again.tokens("train")[:].tolist() == wanted


def test_a_text_that_changes_while_a_mixture_is_prepared_is_refused(texts):
    def byte(documents):
        with (texts / "b.txt").open("a") as file:
            file.write("more")
        return tokenizer.byte(documents)

    with pytest.raises(UserError, match=r"b\.txt must stay as it is while it is read, and it was"):
        Mixture(sources(texts), 0.1).prepare(byte, texts / "data")
    assert not list((texts / "data").glob("mixture*"))


def test_keys_beside_a_prepared_folder_are_refused(texts):
    prepared, _ = prepare(TextCorpus(texts / "a.txt", 0.1), tokenizer.byte, texts / "data")
    given = {"a": {"path": str(prepared.folder), "weight": 1, "val_fraction": 0.5}}
    with pytest.raises(
        UserError, match=r"must have a path and a weight alone, .* got val_fraction"
    ):
        Mixture(given, 0.1)


def test_a_folder_with_another_programs_meta_json_is_text(texts):
    (texts / "site").mkdir()
    (texts / "site" / "meta.json").write_text('{"title": "My site"}')
    (texts / "site" / "page.txt").write_text("some text " * 40)
    given = {"a": {"path": str(texts / "site"), "weight": 1}}
    store, _ = Mixture(given, 0.1).prepare(tokenizer.byte, texts / "data")
    assert store.n_bytes("train") == 360


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (5, ""),
        ({}, ""),
        ({"a": 5}, ".a"),
        ({"a": {"path": "a.txt"}}, ".a.weight"),
        ({"a": {"weight": 1}}, ".a.path"),
        ({"a": {"path": "a.txt", "weight": 0.5}}, ".a.weight"),
        ({"a": {"path": "a.txt", "weight": 0}}, ".a.weight"),
        ({"a": {"path": "a.txt", "weight": 10**30}}, ".a.weight"),
        ({"a": {"path": "a.txt", "weight": 1, "weigth": 1}}, ".a.weigth"),
        ({"a": {"path": "a.txt", "weight": 1, "on_error": "pass"}}, ".a.on_error"),
        ({"a/b": {"path": "a.txt", "weight": 1}}, ".a/b.[key]"),
    ],
)
def test_a_mistake_in_the_sources_is_refused_by_its_key(given, key):
    assert refused_keys(Mixture, sources=given, val_fraction=0.1) == {f"sources{key}"}


def test_a_source_that_is_not_there_is_named():
    with pytest.raises(UserError, match=r"data\.sources\.a .* gone.txt, which does not exist"):
        Mixture({"a": {"path": "gone.txt", "weight": 1}}, 0.1)


def test_a_mixture_is_no_source_of_a_mixture(texts):
    mixture, _ = Mixture(sources(texts), 0.1).prepare(tokenizer.byte, texts / "data")
    given = {"a": {"path": str(mixture.folder), "weight": 1}}
    with pytest.raises(UserError, match=r"data\.sources\.a\.path must hold .* which is a mixture"):
        Mixture(given, 0.1)

    # A folder that names itself would be opened for ever.
    change_meta(mixture.folder, lambda meta: meta["sources"][0].update(folder=mixture.folder.name))
    with pytest.raises(UserError, match="must hold tokens to be part of a mixture, and is a mix"):
        TokenStore(mixture.folder)
