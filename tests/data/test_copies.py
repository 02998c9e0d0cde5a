"""Copied parts of a text, against a search that compares every pair of places."""

import random
from functools import partial

import pytest

from gptmini.data import prepare
from gptmini.data.prepared import copies
from gptmini.data.prepared.copies import find_copies, place_of
from gptmini.tokenizer import END_OF_TEXT, bpe, byte, character
from toys import Documents

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "und",
    "größer",
    "春天",
    "来了",
    "🙂",
]
TOKENIZERS = {
    "byte": byte,
    "char": character,
    "bpe": partial(bpe, vocab_size=300, train_bytes=10**6),
}


def words(draw, n_words):
    return " ".join(draw.choices(WORDS, k=n_words))


@pytest.fixture(scope="module", params=TOKENIZERS.values(), ids=TOKENIZERS.keys())
def store(request, tmp_path_factory):
    """Four documents, whose tokens follow each other with an end-of-text between them."""
    draw = random.Random(1)
    texts = [words(draw, n_words) for n_words in (60, 3, 80, 20)]
    corpus = Documents(texts, [words(draw, 30)])
    store, _ = prepare(corpus, request.param, tmp_path_factory.mktemp("data"))
    return store


def brute_force(generated, store):
    """The copied characters, all characters, and those of the longest copied part."""
    training = store.tokens("train").tolist()
    # A character is counted in the token with its first byte.
    sizes = [sum(byte >> 6 != 2 for byte in store.tokenizer.token_bytes(i)) for i in generated]
    sizes = [
        0 if i == store.tokenizer.end_of_text else n for i, n in zip(generated, sizes, strict=True)
    ]
    copied = set()
    longest = 0
    for start in range(len(generated)):
        for place in range(len(training)):
            n = 0
            while generated[start + n : start + n + 1] == training[place + n : place + n + 1] != []:
                n += 1
            n_characters = sum(sizes[start : start + n])
            if n >= 8 and n_characters >= 32:
                copied |= {*range(start, start + n)}
                longest = max(longest, n_characters)
    return sum(sizes[i] for i in copied), sum(sizes), longest


@pytest.mark.parametrize("seed", range(20))
def test_the_search_finds_what_a_comparison_of_all_places_finds(store, seed, monkeypatch):
    # The training text has several chunks, and parts lie across their edges.
    monkeypatch.setattr(copies, "CHUNK", 90)
    draw = random.Random(seed)
    training = store.tokens("train").tolist()
    generated = []
    while len(generated) < 150:
        # Parts of the text, with ends of documents in some, between other words. They may overlap.
        place = draw.randrange(len(training))
        generated += training[place : place + draw.randrange(3, 70)]
        generated += store.tokenizer.encode(words(draw, draw.randrange(3)))

    found = find_copies(generated, store)
    n_copied, n_characters, n_longest = brute_force(generated, store)
    assert found.share == n_copied / n_characters
    # Half a character at an edge, and ends of documents, do not count.
    longest = found.text.replace("�", "").replace(END_OF_TEXT, "")
    assert n_longest - 1 <= len(longest) <= n_longest
    for start, end, place in found.spans:
        assert training[place : place + end - start] == generated[start:end]


def test_the_place_of_a_part(store):
    draw = random.Random(1)
    first, _, third = (words(draw, n_words) for n_words in (60, 3, 80))
    part = third[40:140]
    found = find_copies(store.tokenizer.encode(part), store)
    document, offset = place_of(found.longest, store).split(", character ")
    assert document == "document 3"
    # The first token of the part may be cut off in another place than in the text.
    assert abs(int(offset) - 41) <= 8
    assert (
        find_copies([], store).share
        == find_copies(store.tokenizer.encode(first[::-1]), store).share
        == 0
    )


def test_a_text_of_one_repeated_token_is_searched_in_little_time(tmp_path):
    # A search that compares every pair of places would take minutes.
    rows = ("-" * 79 + "\n") * 20_000
    store, _ = prepare(Documents([rows], ["held out"]), byte, tmp_path)
    dashes = [ord("-")] * 200
    found = find_copies(dashes, store)
    assert (found.share, len(found.text)) == (1.0, 79)
    assert find_copies(store.tokens("train")[40:340].tolist(), store).share == 1.0
