"""Tokenizers against Hugging Face's tokenizers and tiktoken's own encoding."""

import json
import random
import socket

import numpy as np
import pytest
import tiktoken
import tokenizers

from gptmini import tokenizer
from gptmini.tokenizer import from_dict
from tokenizer.texts import (
    CHINESE,
    END,
    TRAIN,
    WORDS,
    random_texts,
    tokenizer_of_gpt2,
)
from toys import documents_of


@pytest.fixture(scope="module")
def built():
    """A tokenizer of each kind by name."""
    return {
        "char": tokenizer.character(documents_of([*TRAIN, *random_texts(100)])),
        "byte": tokenizer.byte([]),
        "bpe": tokenizer.bpe(documents_of(TRAIN), vocab_size=347),
    }


EACH = pytest.mark.parametrize("kind", ["char", "byte", "bpe"])


@EACH
def test_any_text_survives_a_round_trip_and_a_batch_has_the_ids_of_each(built, kind):
    coder = built[kind]
    texts = [*random_texts(100), "", END, WORDS]
    batch = list(coder.encode_batch(iter(texts)))
    assert {ids.dtype for ids in batch} == {np.dtype(np.uint32)}
    for text, ids in zip(texts, batch, strict=True):
        assert coder.encode(text) == ids.tolist()
        assert coder.decode(ids) == text
        assert coder.end_of_text not in ids
        assert coder.byte_lengths()[ids].sum() == len(text.encode())


@EACH
def test_a_tokenizer_survives_json(built, kind):
    again = from_dict(json.loads(json.dumps(built[kind].to_dict())))
    assert again.to_dict() == built[kind].to_dict()
    assert (again.n_vocab, again.end_of_text) == (built[kind].n_vocab, built[kind].end_of_text)
    for text in random_texts(50):
        assert again.encode(text) == built[kind].encode(text)


@EACH
def test_decoding_any_ids_never_raises(built, kind):
    n_vocab = built[kind].n_vocab
    end = built[kind].end_of_text
    assert built[kind].decode([-1, n_vocab, -(2**70), 2**70, end]) == "\ufffd" * 4 + END

    draw = random.Random(2)
    for _ in range(50):
        ids = [draw.randrange(-3, n_vocab + 3) for _ in range(29)]
        text = built[kind].decode(ids)
        text.encode()
        assert built[kind].decode(np.array(ids)) == text


@pytest.mark.parametrize(
    ("train", "val", "end_of_text"),
    [(["cab"], ["b\u00e9a"], None), (["ca", "b"], ["\u00e9"], 4), (["ca"], ["b", "\u00e9"], 4)],
)
def test_char_ids_follow_code_points_and_several_documents_of_a_split_have_an_end(
    train, val, end_of_text
):
    char = tokenizer.character(documents_of(train, val))
    assert char.encode("abc\u00e9") == [0, 1, 2, 3]
    assert (char.n_vocab, char.end_of_text) == (4 + (end_of_text is not None), end_of_text)


def test_bpe_ids_equal_those_of_hugging_face(built):
    # The peer uses its own spelling of the pattern.
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    peer = tokenizers.Tokenizer(tokenizers.models.BPE())
    peer.pre_tokenizer = byte_level
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=346, initial_alphabet=byte_level.alphabet(), show_progress=False
    )
    peer.train_from_iterator(TRAIN, trainer)

    for text in random_texts(200):
        # The peer writes each byte as a letter, and orders single bytes differently.
        letters = "".join(piece for piece, _ in byte_level.pre_tokenize_str(text))
        byte_of = dict(zip(letters, text.encode(), strict=True))

        encoded = peer.encode(text)
        tokens = zip(encoded.tokens, encoded.ids, strict=True)
        assert built["bpe"].encode(text) == [byte_of.get(token, i) for token, i in tokens]


def test_gpt2_equals_tiktoken():
    gpt2 = tokenizer_of_gpt2()
    peer = tiktoken.get_encoding("gpt2")
    assert gpt2.encode("Hello, world!") == [15496, 11, 995, 0]
    assert (gpt2.n_vocab, gpt2.end_of_text) == (50257, peer.eot_token)
    for text in [*random_texts(100), END, WORDS, CHINESE]:
        assert gpt2.encode(text) == peer.encode_ordinary(text)
    assert gpt2.decode([0, 50256, 50255]) == peer.decode([0, 50256, 50255])


def test_gpt2_without_cache_and_network_says_what_to_do(tmp_path, monkeypatch):
    def no_network(*_, **__):
        raise socket.gaierror("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        tiktoken.registry, "ENCODINGS", {}
    )  # drop encodings that are already loaded
    said = rf"^.*TIKTOKEN_CACHE_DIR \(now {tmp_path}\).*tokenizer=bpe.*\Z"
    with pytest.raises(ValueError, match=said):
        tokenizer.gpt2([])


def test_text_that_cannot_be_encoded_is_named_with_its_position(built):
    with pytest.raises(ValueError, match=r"'\u00e9' \(U\+00E9\) at position 3$"):
        tokenizer.character(documents_of(["abc"], ["d"])).encode("bad\u00e9cz")
    for kind in ("byte", "bpe"):
        with pytest.raises(ValueError, match=r"U\+DFFF at position 2"):
            list(built[kind].encode_batch(["fine", "ab\udfff"]))


CHAR = {"kind": "char", "characters": "ab", "end_of_text": True}
BYTE = tokenizer.byte([]).to_dict()
# tests/fuzz tries broken inputs of every kind.
BROKEN = [
    None,
    {"kind": "words"},
    CHAR | {"characters": "aba"},
    CHAR | {"characters": "a\ud800"},
    BYTE | {"pattern": r"\S"},
    BYTE | {"ranks": BYTE["ranks"][:-1]},
    BYTE | {"ranks": [*BYTE["ranks"], BYTE["ranks"][5]]},
    BYTE | {"ranks": [*BYTE["ranks"], *["QUFB" * 250_000] * 200_000]},  # 150 GB, decoded
]


@pytest.mark.parametrize("state", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_dict_is_one_value_error(state):
    with pytest.raises(ValueError, match=r"^.+\Z"):  # one line
        from_dict(state)
