"""Tokenizers against Hugging Face's tokenizers, tiktoken's own encoding, and merges written out."""

import json
import random
import socket
from itertools import pairwise

import numpy as np
import pytest
import regex
import tiktoken
import tokenizers

from gptmini import tokenizer
from gptmini.tokenizer import from_dict
from tokenizer.texts import END, GPT2_PATTERN, TRAIN, WORDS, random_texts
from toys import documents_of


@pytest.fixture(scope="module")
def built():
    """A tokenizer of each kind, by its name."""
    return {
        "char": tokenizer.character(documents_of([*TRAIN, *random_texts(100)])),
        "byte": tokenizer.byte([]),
        "bpe": tokenizer.bpe(documents_of(TRAIN), vocab_size=347),
    }


def merged_by_hand(text, ranks):
    """Byte-pair ids, one merge at a time: the neighbours whose joint bytes have the lowest rank, leftmost first."""
    rank_of = {token: rank for rank, token in enumerate(ranks)}

    ids = []
    for piece in regex.findall(GPT2_PATTERN, text):
        parts = [bytes([value]) for value in piece.encode()]
        while len(parts) > 1:
            pairs = enumerate(pairwise(parts))
            rank, i = min((rank_of.get(a + b, len(ranks)), i) for i, (a, b) in pairs)
            if rank == len(ranks):
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        ids += [rank_of[part] for part in parts]
    return ids


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_any_text_survives_a_round_trip(built, kind):
    for text in [*random_texts(100), "", END, WORDS]:
        assert built[kind].decode(built[kind].encode(text)) == text


def test_byte_ids_are_the_utf8_bytes(built):
    for text in random_texts(100):
        assert built["byte"].encode(text) == list(text.encode())
    assert (built["byte"].n_vocab, built["byte"].end_of_text) == (257, 256)


def test_char_ids_follow_code_points():
    char = tokenizer.character(documents_of(["cab"], ["b\u00e9a"]))
    assert char.encode("abc\u00e9") == [0, 1, 2, 3]
    assert (char.n_vocab, char.end_of_text) == (4, None)


@pytest.mark.parametrize(("train", "val"), [(["a", "b"], ["c"]), (["a"], ["b", "c"])])
def test_char_has_an_end_of_text_where_a_split_has_several_documents(train, val):
    char = tokenizer.character(documents_of(train, val))
    assert (char.n_vocab, char.end_of_text, char.decode([2, 3])) == (4, 3, "c" + END)


def test_bpe_ids_equal_those_of_hugging_face(built):
    # The peer cuts texts by its own spelling of the pattern.
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    peer = tokenizers.Tokenizer(tokenizers.models.BPE())
    peer.pre_tokenizer = byte_level
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=346, initial_alphabet=byte_level.alphabet(), show_progress=False
    )
    peer.train_from_iterator(TRAIN, trainer)

    for text in random_texts(200):
        # The peer writes each byte as one letter, and numbers single bytes in another order.
        letters = "".join(piece for piece, _ in byte_level.pre_tokenize_str(text))
        byte_of = dict(zip(letters, text.encode(), strict=True))

        encoded = peer.encode(text)
        tokens = zip(encoded.tokens, encoded.ids, strict=True)
        expected = [byte_of.get(token, i) for token, i in tokens]
        assert built["bpe"].encode(text) == expected


def test_bpe_ids_equal_merges_written_out(built):
    ranks = built["bpe"].ranks
    assert len(ranks) == 346
    assert built["bpe"].end_of_text == 346
    for text in random_texts(200):
        assert built["bpe"].encode(text) == merged_by_hand(text, ranks)


def test_gpt2_equals_tiktoken(gpt2):
    peer = tiktoken.get_encoding("gpt2")
    assert gpt2.encode("Hello, world!") == [15496, 11, 995, 0]
    assert (gpt2.n_vocab, gpt2.end_of_text) == (50257, peer.eot_token)

    for text in [*random_texts(100), END, WORDS]:
        assert gpt2.encode(text) == peer.encode_ordinary(text)
        assert gpt2.decode(gpt2.encode(text)) == text

    assert gpt2.decode([0, 50256, 50255]) == peer.decode([0, 50256, 50255])


def test_gpt2_travels_whole_through_json(gpt2, tmp_path, monkeypatch):
    state = json.loads(json.dumps(gpt2.to_dict()))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})

    assert from_dict(state).encode("Hello, world!") == [15496, 11, 995, 0]


def test_gpt2_without_cache_and_network_says_what_to_do(tmp_path, monkeypatch):
    def no_network(*_, **__):
        raise socket.gaierror("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})  # what this process has loaded already

    with pytest.raises(ValueError, match=r"TIKTOKEN_CACHE_DIR.*tokenizer=bpe") as caught:
        tokenizer.gpt2([])

    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_char_error_names_the_character_and_its_position():
    with pytest.raises(ValueError, match=r"'\u00e9' \(U\+00E9\) at position 3$"):
        tokenizer.character(documents_of(["abc"], ["d"])).encode("bad\u00e9cz")


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_a_lone_surrogate_is_refused_by_name_and_position(built, kind):
    with pytest.raises(ValueError, match=r"U\+D83D at position 2"):
        built[kind].encode("ab\ud83d\ude00")
    with pytest.raises(ValueError, match=r"U\+DFFF at position 0"):
        list(built[kind].encode_batch(["fine", "\udfff"]))


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
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


def test_bytes_that_are_no_utf8_decode_as_python_replaces_them(built):
    ids = [0xE2, 0x82, 0x41, 0xFF, 0xC3, 0xA9]
    assert built["byte"].decode(ids) == bytes(ids).decode(errors="replace") == "\ufffdA\ufffd\u00e9"


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_encode_batch_equals_encode(built, kind):
    texts = [*random_texts(30), "", END]
    batch = list(built[kind].encode_batch(iter(texts)))
    assert {ids.dtype for ids in batch} == {np.dtype(np.uint32)}
    assert [ids.tolist() for ids in batch] == [built[kind].encode(text) for text in texts]


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_the_end_of_text_string_is_plain_text(built, kind):
    assert built[kind].end_of_text not in built[kind].encode(f"a{END}b")
    assert built[kind].end_of_text not in next(built[kind].encode_batch([f"a{END}b"]))


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_a_tokenizer_survives_json(built, kind):
    again = from_dict(json.loads(json.dumps(built[kind].to_dict())))
    assert again.to_dict() == built[kind].to_dict()
    assert (again.n_vocab, again.end_of_text) == (built[kind].n_vocab, built[kind].end_of_text)
    for text in random_texts(50):
        assert again.encode(text) == built[kind].encode(text)


CHAR = {"kind": "char", "characters": "ab", "end_of_text": True}
BYTE = tokenizer.byte([]).to_dict()
BROKEN = [
    None,
    [],
    {},
    {"kind": "words"},
    {"kind": "char", "end_of_text": True},
    CHAR | {"characters": 7},
    CHAR | {"characters": "aba"},
    CHAR | {"characters": ""},
    CHAR | {"end_of_text": "yes"},
    BYTE | {"pattern": "("},
    BYTE | {"pattern": 7},
    BYTE | {"ranks": BYTE["ranks"][:-1]},
    BYTE | {"ranks": [*BYTE["ranks"], BYTE["ranks"][5]]},
    BYTE | {"ranks": [*BYTE["ranks"], "a"]},
    BYTE | {"ranks": [*BYTE["ranks"], "\u00e9"]},
    BYTE | {"ranks": [*BYTE["ranks"], 7]},
]


@pytest.mark.parametrize("state", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_dict_is_one_value_error(state):
    with pytest.raises(ValueError, match=r"^.+\Z"):  # one line
        from_dict(state)


def test_a_table_that_names_one_long_text_many_times_takes_no_memory():
    state = BYTE | {"ranks": [*BYTE["ranks"], *["QUFB" * 250_000] * 200_000]}  # 150 GB, decoded
    with pytest.raises(ValueError, match="ranks must be distinct"):
        from_dict(state)
