"""Exported tokenizers give the ids of gptmini's own, in the library tokenizers and in transformers."""

import os
import random
from pathlib import Path

import pytest

from gptmini import tokenizer
from gptmini.interop.tokenizer_json import (
    merges_of,
    read_tokenizer,
    to_tokenizers,
    write_tokenizer,
)
from gptmini.user_error import UserError
from tokenizer.texts import END, TIKTOKEN_FILES, TRAIN, WORDS, random_texts, tokenizer_of_gpt2
from toys import documents_of

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# All letters but Chinese and Korean ones, which no rule tells apart; of these and of the other planes some.
CODES = [*range(0x3400), *range(0x3400, 0xA000, 64), *range(0xA000, 0xAC00)]
CODES += [*range(0xAC00, 0xD800, 64), *range(0xE000, 0x20000, 8), *range(0x20000, 0x110000, 512)]
CHARACTERS = "".join(map(chr, CODES))


def made(kind):
    """A tokenizer of a kind; char knows the characters of every text of these tests."""
    if kind == "char":
        texts = [*TRAIN, *random_texts(1000, seed=5), CHARACTERS]
        return tokenizer.character(documents_of([*texts, "two documents"]))
    if kind == "bpe":
        return tokenizer.bpe(documents_of(TRAIN), vocab_size=400)
    if kind == "byte":
        return tokenizer.byte([])
    return tokenizer_of_gpt2()


@pytest.fixture(params=["byte", "bpe", "gpt2", "char"], scope="module")
def both(request):
    """A tokenizer of gptmini, and what was exported of it."""
    ours = made(request.param)
    return ours, to_tokenizers(ours)


def assert_same(both, texts):
    """Ids are the same, and decode to the texts, one for each batch of texts."""
    ours, theirs = both
    expected = [ids.tolist() for ids in ours.encode_batch(texts)]
    got = [encoded.ids for encoded in theirs.encode_batch(texts)]
    assert got == expected
    assert [theirs.decode(ids) for ids in got[:50]] == list(texts[:50])


def test_random_texts_have_the_same_ids(both):
    assert_same(both, random_texts(1000, seed=5))
    assert_same(both, ["", WORDS, "\n", " " * 40 + "a"])


def test_the_end_of_a_document_has_the_same_id(both):
    ours, theirs = both
    assert theirs.token_to_id(END) == ours.end_of_text
    assert theirs.get_vocab_size() == ours.n_vocab
    assert theirs.decode([ours.end_of_text], skip_special_tokens=False) == END


@pytest.mark.parametrize("both", ["bpe", "gpt2"], indirect=True)
def test_texts_of_cut_and_joined_tokens_have_the_same_ids(both):
    """Tokens side by side, or cut, where merges compete; what is no UTF-8 is left out."""
    draw = random.Random(7)
    texts = []
    for _ in range(3000):
        tokens = [draw.choice(both[0].ranks) for _ in range(draw.randrange(1, 5))]
        cut = [token[draw.randrange(len(token)) :] for token in tokens]
        texts.append(b"".join(draw.choice([tokens, cut])).decode(errors="ignore"))
    assert_same(both, texts)


@pytest.mark.slow
@pytest.mark.parametrize("both", ["bpe", "char"], indirect=True)
def test_characters_of_every_kind_have_the_same_ids_in_five_contexts(both):
    ours, theirs = both
    for first in range(0, len(CHARACTERS), 4096):
        # Between letters, by itself, doubled, behind a digit, and behind an apostrophe.
        some = CHARACTERS[first : first + 4096]
        text = "".join(f"a{c}b {c} {c}{c}1{c}'{c}s\n" for c in some)
        assert theirs.encode(text).ids == ours.encode(text)


def test_a_character_that_is_unknown_is_an_error_and_not_left_out():
    theirs = to_tokenizers(tokenizer.character(documents_of(["ab"])))
    with pytest.raises(Exception, match="UNK"):
        theirs.encode("aZb")


def test_every_way_to_make_a_token_is_a_merge():
    ranks = [bytes([i]) for i in range(256)] + [b"ab", b"bc", b"abc", b"xyz"]
    assert merges_of(ranks) == [("a", "b"), ("b", "c"), ("a", "bc"), ("ab", "c")]


def test_the_files_that_openai_published_are_read(tmp_path):
    ours = tokenizer_of_gpt2()
    for name, copy in zip(TIKTOKEN_FILES, ("merges.txt", "vocab.json"), strict=True):
        content = (Path(os.environ["TIKTOKEN_CACHE_DIR"]) / name).read_bytes()
        (tmp_path / copy).write_bytes(content)
    read = read_tokenizer(tmp_path, n_vocab=50257, ends=[50256])
    assert read.to_dict() == ours.to_dict()

    (tmp_path / "merges.txt").write_text("h e l l o")
    with pytest.raises(
        UserError, match=r"vocab\.json must be a tokenizer of the library tokenizers"
    ):
        read_tokenizer(tmp_path, n_vocab=300, ends=[])


@pytest.mark.parametrize("kind", ["byte", "bpe", "char"])
def test_transformers_reads_the_written_files(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = made(kind)
    write_tokenizer(ours, tmp_path, context_length=77)

    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.model_max_length, len(theirs)) == (77, ours.n_vocab)
    assert (theirs.bos_token_id, theirs.eos_token_id) == (ours.end_of_text, ours.end_of_text)
    for text in [WORDS, *random_texts(100, seed=5)]:
        assert theirs(text)["input_ids"] == ours.encode(text)
        assert theirs.decode(ours.encode(text)) == text
