"""gigatoken gives the ids of tiktoken and of the tokenizers library, or is not used."""

import json
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gptmini import tokenizer
from gptmini.tokenizer import byte_pairs, fast, library
from gptmini.tokenizer.fast import fast_byte_pairs, fast_library
from gptmini.tokenizer.library import LibraryTokenizer
from gptmini.user_error import UserError
from interop.library_tokenizers import learned, of_sentence_piece
from tokenizer.texts import CHINESE, END, TRAIN, WORDS, random_texts, tokenizer_of_gpt2
from toys import documents_of

pytest.importorskip("gigatoken")

CODER = tokenizer.bpe(documents_of([*TRAIN, CHINESE]), vocab_size=500)
FAST = fast_byte_pairs(CODER.ranks, CODER.encode)

# Characters of each kind of piece, white space of each kind, contractions, and parts of special tokens.
SPACES = " \n\t\r\x00\x01\x1c\x85\xa0\u2028\u3000\u200b\ufeff"
PARTS = [*SPACES, *"aZéßİǅ日한ไ🙂\u03011٣½Ⅷ²_-.", "'s", "'LL", "\u2019t", END, "<|"]


@given(
    st.lists(st.sampled_from(PARTS)).map("".join)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
def test_any_text_has_the_ids_of_tiktoken(text):
    assert FAST(text.encode()).tolist() == CODER.encode(text)


@pytest.mark.parametrize("make", [tokenizer_of_gpt2, lambda: CODER])
def test_texts_have_the_ids_of_tiktoken(make):
    coder = make()
    fast = fast_byte_pairs(coder.ranks, coder.encode)
    for text in [
        *random_texts(500, seed=57),
        *TRAIN,
        CHINESE,
        WORDS * 100,
        " " * 10_000 + "a" * 10_000,
    ]:
        ids = fast(text.encode())
        assert ids.dtype == np.uint32
        assert ids.tolist() == coder.encode(text)


def test_a_tokenizer_uses_it_after_much_text(monkeypatch):
    monkeypatch.setattr(byte_pairs, "FAST_FROM", 1000)
    coder = tokenizer.bpe(documents_of(TRAIN), vocab_size=300)
    used = []
    monkeypatch.setattr(
        byte_pairs, "fast_byte_pairs", lambda *given: used.append(1) or fast_byte_pairs(*given)
    )
    texts = random_texts(300)
    first = [ids.tolist() for ids in coder.encode_batch(texts)]
    assert not used
    assert [ids.tolist() for ids in coder.encode_batch(texts)] == first
    assert used
    assert not any(isinstance(value, tiktoken.Encoding) for value in vars(coder).values())
    with pytest.raises(UserError, match="U\\+D800 at position 1"):
        coder.encode("a\ud800")


def of_gpt2(pattern=None):
    """Return a tokenizer with GPT-2's pattern, or with another pattern as in Llama 3 and Qwen."""
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tree = json.loads(learned(WORDS, special=["<s>", END]).to_str())
    if pattern is None:
        tree["pre_tokenizer"] = by_bytes | {"use_regex": True}
    else:
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
        steps = [split | {"invert": False}, by_bytes | {"use_regex": False}]
        tree["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    return Tokenizer.from_str(json.dumps(tree))


# From the tokenizer.json of Qwen 3. Llama 3 has groups of up to three digits.
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)


@pytest.mark.parametrize(
    "make",
    [
        of_gpt2,
        lambda: of_gpt2(QWEN),
        lambda: of_gpt2(QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")),
        of_sentence_piece,
    ],
    ids=["GPT-2", "Qwen", "Llama 3", "Llama 2"],
)
def test_a_tokenizer_of_the_library_keeps_its_ids(make, monkeypatch):
    monkeypatch.setattr(library, "FAST_FROM", 0)
    peer = make()
    peer.encode_special_tokens = True

    def ids_of(text):
        return peer.encode(text, add_special_tokens=False).ids

    assert fast_library(json.loads(peer.to_str()), ids_of) is not None

    coder = LibraryTokenizer(peer.to_str(), n_vocab=2000, end_of_text=None)
    texts = [*random_texts(500, seed=57), f"a{END}<s> b</s>", CHINESE, WORDS]
    expected = [ids_of(text) for text in texts]
    assert [ids.tolist() for ids in coder.encode_batch(texts)] == expected
    with pytest.raises(UserError, match="surrogates"):
        coder.encode("a\ud800")


def test_it_is_not_used_if_it_gives_other_ids_or_cannot_load_the_tokenizer():
    with pytest.warns(UserWarning, match="other ids"):
        assert fast_byte_pairs(CODER.ranks, lambda text: [*CODER.encode(text), 0]) is None
    tree = {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}
    with pytest.warns(UserWarning, match="cannot load"):
        assert fast_library(tree, lambda text: []) is None


class Growing:
    """A tokenizer with the interface of gigatoken."""

    def encode(self, data):
        return np.frombuffer(data, dtype=np.uint8).astype(np.uint32)


def test_it_is_loaded_again_after_many_ids_to_free_its_memory(monkeypatch):
    monkeypatch.setattr(fast, "RENEW_AFTER", 10)
    monkeypatch.setattr(fast, "PROBE", "")
    loaded = weakref.WeakSet()
    n_alive = []

    def load():
        n_alive.append(len(loaded))
        loaded.add(made := Growing())
        return made

    encode = fast._checked(load, lambda text: [], "")
    assert [encode(b"abcde").tolist() for _ in range(5)] == [[97, 98, 99, 100, 101]] * 5
    assert n_alive == [0, 0, 0]  # after 10 and after 20 ids


def test_threads_share_an_encoder_that_is_loaded_again(monkeypatch):
    monkeypatch.setattr(fast, "RENEW_AFTER", 2000)
    texts = random_texts(400, seed=3)
    encode = fast_byte_pairs(CODER.ranks, CODER.encode)
    with ThreadPoolExecutor(4) as threads:
        found = [ids.tolist() for ids in threads.map(encode, map(str.encode, texts))]
    assert found == [CODER.encode(text) for text in texts]


def with_added(content, **changes):
    """Return the tree of Llama 2's kind of tokenizer with one more token, which is not special."""
    tree = json.loads(of_sentence_piece().to_str())
    token = tree["added_tokens"][-1] | {"content": content, "special": False, **changes}
    return tree | {"added_tokens": [*tree["added_tokens"], token]}


def without_byte(value):
    """Return the tree of Llama 2's kind of tokenizer without the token of one byte."""
    tree = json.loads(of_sentence_piece().to_str())
    del tree["model"]["vocab"][f"<0x{value:02X}>"]
    return tree


@pytest.mark.filterwarnings("ignore:gigatoken")
@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (with_added(" <a>", id=3, lstrip=True), " <a> <a>the x"),
        (with_added("", id=3), "the x"),
        (without_byte(0x4D), "MM"),
        (without_byte(0xD5), "\u0541\u0541"),
        (without_byte(0xEE), "\ue000\ue000"),
    ],
    ids=["token with a space", "empty token", "no byte 4D", "no byte D5", "no byte EE"],
)
def test_a_strange_tokenizer_keeps_its_ids(tree, text):
    peer = Tokenizer.from_str(json.dumps(tree))
    peer.encode_special_tokens = True

    def ids_of(text):
        return peer.encode(text, add_special_tokens=False).ids

    encode = fast_library(tree, ids_of)
    assert encode is None or encode(text.encode()).tolist() == ids_of(text)


def test_without_it_nothing_is_said(monkeypatch, recwarn):
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    monkeypatch.setitem(sys.modules, "gigatoken.gigatoken_rs", None)
    assert fast_byte_pairs(CODER.ranks, CODER.encode) is None
    assert not list(recwarn)
