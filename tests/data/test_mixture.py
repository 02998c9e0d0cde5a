"""Mixtures: one tokenizer for all sources, and their tokens one after the other."""

from functools import partial

import numpy as np
import pytest

from gptmini import tokenizer
from gptmini.checks import UserError
from gptmini.data.mixture import Mixture
from gptmini.data.preparation import Watcher, prepare
from gptmini.data.store import Source, TokenStore
from gptmini.data.text_corpus import TextCorpus
from toys import change_meta

OPTIONS = {"rebuild": tokenizer.from_dict, "n_workers": 1, "watcher": Watcher()}


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
    store, written = mixture.prepare(tokenizer.character, texts / "data", **OPTIONS)

    assert written
    assert tokenizer.from_dict(store.tokenizer).characters == " abxyz"
    assert store.sources == [Source("one", 3, 181), Source("two", 1, 109)]
    coder = tokenizer.from_dict(store.tokenizer)
    end = "<|endoftext|>"
    text = coder.decode(store.tokens("train")[:].tolist())
    assert text == "aab " * 45 + end + "xyz " * 27 + end
    assert store.n_tokens("train") == len(store.tokens("train")) == 290
    assert store.n_bytes("val") == 20 + 12

    again, written = Mixture(sources(texts), 0.1).prepare(
        tokenizer.character, texts / "data", **OPTIONS
    )
    assert not written
    assert again.fingerprint == store.fingerprint
    assert TokenStore(store.folder).sources == store.sources
    store.verify()
    store.check_size("train")


def test_bpe_learns_from_all_texts(texts):
    build = partial(tokenizer.bpe, vocab_size=300)
    store, _ = Mixture(sources(texts), 0.1).prepare(build, texts / "data", **OPTIONS)
    learned = tokenizer.from_dict(store.tokenizer).ranks[256:]
    assert any(set(token) & set(b"xyz") for token in learned)
    assert any(set(token) & set(b"ab") for token in learned)


def test_other_weights_are_another_mixture_of_the_same_folders(texts):
    first, _ = Mixture(sources(texts), 0.1).prepare(tokenizer.byte, texts / "data", **OPTIONS)
    others = sources(texts) | {"two": {"path": str(texts / "b.txt"), "weight": 2}}
    second, _ = Mixture(others, 0.1).prepare(tokenizer.byte, texts / "data", **OPTIONS)
    assert first.fingerprint != second.fingerprint
    names = sorted(path.name.partition("-")[0] for path in (texts / "data").glob("[!.]*"))
    assert names == ["mixture", "mixture", "one", "two"]


def test_a_validation_reads_of_each_source_as_its_weight_says(texts):
    store, _ = Mixture(sources(texts), 0.1).prepare(tokenizer.byte, texts / "data", **OPTIONS)
    assert [part.n_tokens for part in store.held_out(8)] == [6, 2]
    assert [part.n_tokens for part in store.held_out(40)] == [21, 10]  # one has no more
    assert [part.n_tokens for part in store.held_out(None)] == [21, 13]
    assert bytes(store.held_out(8)[1].ids[:4].tolist()) == b"xyz "


def test_prepared_folders_are_taken_as_they_are(texts):
    prepared, _ = prepare(TextCorpus(texts / "a.txt", 0.1), tokenizer.byte, texts / "data")
    given = sources(texts) | {"old": {"path": str(prepared.folder), "weight": 5}}
    store, _ = Mixture(given, 0.1).prepare(tokenizer.byte, texts / "data", **OPTIONS)
    assert store.sources[2] == Source("old", 5, prepared.n_tokens("train"))
    assert store.tokens("train")[np.arange(-5, 0) + store.n_tokens("train")].tolist() == [
        *b"aab ",
        256,
    ]

    with pytest.raises(UserError, match=r"one tokenizer, got .* with byte and tokenizer=character"):
        Mixture(given, 0.1).prepare(tokenizer.character, texts / "data", **OPTIONS)


def test_prepared_folders_of_several_vocabularies_are_refused(texts):
    given = {}
    for i, name in enumerate("ab"):
        corpus = TextCorpus(texts / f"{name}.txt", 0.1)
        store, _ = prepare(corpus, tokenizer.character, texts / "data")
        given[name] = {"path": str(store.folder), "weight": i + 1}
    with pytest.raises(UserError, match="with different ones; name their texts instead, to learn"):
        Mixture(given, 0.1).prepare(tokenizer.character, texts / "data", **OPTIONS)


def test_a_source_that_was_prepared_anew_is_noticed(texts):
    mixture, _ = Mixture(sources(texts), 0.1).prepare(tokenizer.byte, texts / "data", **OPTIONS)
    (one,) = (texts / "data").glob("one-*")
    (two,) = (texts / "data").glob("two-*")
    (one / "meta.json").write_bytes((two / "meta.json").read_bytes())
    with pytest.raises(UserError, match=r"does not hold what|which holds other tokens now"):
        TokenStore(mixture.folder)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, r"data\.sources must name sources, as \{a: "),
        ({}, r"data\.sources must name sources, as \{a: "),
        ({"a": 5}, r"data\.sources\.a must have a path and a weight, got 5"),
        ({"a": {"path": "a.txt"}}, r"data\.sources\.a must have a weight, got "),
        ({"a": {"weight": 1}}, r"data\.sources\.a must have a path, got "),
        ({"a": {"path": "a.txt", "weight": 0.5}}, r"data\.sources\.a\.weight must be a whole"),
        ({"a": {"path": "a.txt", "weight": 0}}, r"data\.sources\.a\.weight must be a whole"),
        ({"a": {"path": "a.txt", "weigth": 1, "weight": 1}}, "must have none but path, weight, .*"),
        ({"a/b": {"path": "a.txt", "weight": 1}}, r"data\.sources\.a/b must be a plain file name"),
        ({"a": {"path": "gone.txt", "weight": 1}}, "gone.txt, which does not exist"),
    ],
)
def test_a_mistake_in_the_sources_is_named(given, said):
    with pytest.raises(UserError, match=said):
        Mixture(given, 0.1)


def test_a_mixture_is_no_source_of_a_mixture(texts):
    mixture, _ = Mixture(sources(texts), 0.1).prepare(tokenizer.byte, texts / "data", **OPTIONS)
    given = {"a": {"path": str(mixture.folder), "weight": 1}}
    with pytest.raises(UserError, match=r"data\.sources\.a\.path must hold .* which is a mixture"):
        Mixture(given, 0.1)

    # A folder that names itself would be opened for ever.
    change_meta(mixture.folder, lambda meta: meta["sources"][0].update(folder=mixture.folder.name))
    with pytest.raises(UserError, match="must hold tokens to be part of a mixture, and is a mix"):
        TokenStore(mixture.folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta.update(sources=5),
        lambda meta: meta.update(sources=[5]),
        lambda meta: meta["sources"][0].update(weight=0),
        lambda meta: meta["sources"][0].update(folder=None),
        lambda meta: meta["sources"][0].pop("name"),
        lambda meta: meta["train"].update(files=5),
        lambda meta: meta["val"].update(files=[{"path": "x", "skip": -1, "tokens": 1, "size": 1}]),
    ],
)
def test_sources_of_wrong_types_are_refused_although_the_digest_is_right(texts, change):
    mixture, _ = Mixture(sources(texts), 0.1).prepare(tokenizer.byte, texts / "data", **OPTIONS)
    change_meta(mixture.folder, change)
    with pytest.raises(UserError, match=r"meta\.json lacks what this version wrote"):
        TokenStore(mixture.folder)
