"""Tokenizers against Hugging Face's tokenizers, tiktoken's own encoding, and merges written out."""

import json
import os
import random
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import regex
import tiktoken
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from gptmini import tokenizer
from gptmini.tokenizer import from_dict
from toys import documents_of

TIKTOKEN_FILES = (
    "6d1cbeee0f20b3d9449abfede4726ed8212e3aee",
    "6c7ea1a7e38e3a7f062df639a5b80947f075ffe6",
)
# Hugging Face's and GPT-2's own spelling of the rule that tiktoken spells with possessive quantifiers.
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = (
    "the theory of these three trees: they're 33 feet  tall,\n"
    "\tand I'll say \u00e9t\u00e9 \u65e5\u672c \U0001f600!"
)
END = "<|endoftext|>"


def random_texts(n, seed=0):
    """Texts of any code points but surrogates. Small code points, white space and words are frequent."""
    draw = random.Random(seed)
    anything = [*range(0xD800), *range(0xE000, 0x110000)]
    parts = [
        lambda: draw.choice(WORDS.split(" ")),
        lambda: draw.choice(" \n\t\r\u00a0"),
        lambda: chr(draw.randrange(128)),
        lambda: chr(draw.choice(anything)),
    ]

    def text():
        return "".join(draw.choice(parts)() for _ in range(draw.randrange(60)))

    return [text() for _ in range(n)]


TRAIN = [WORDS * 3, *random_texts(40, seed=1)]


@pytest.fixture(scope="module")
def built():
    """A tokenizer of each kind, by its name."""
    return {
        "char": tokenizer.character(documents_of([*TRAIN, *random_texts(100)])),
        "byte": tokenizer.byte([]),
        "bpe": tokenizer.bpe(documents_of(TRAIN), vocab_size=347),
    }


@pytest.fixture
def gpt2():
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", "")
    if not folder or not all((Path(folder) / name).is_file() for name in TIKTOKEN_FILES):
        pytest.skip("TIKTOKEN_CACHE_DIR does not name a folder with tiktoken's two files of gpt2")
    return tokenizer.gpt2([])


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


def test_bpe_learns_the_most_frequent_pairs_first():
    learned = tokenizer.bpe(documents_of(["xyz " * 6 + "xyw " * 4]), vocab_size=256 + 3 + 1).ranks[
        256:
    ]
    assert learned == [b"xy", b" xy", b" xyz"]  # seen 10, 9 and 5 times: no space before the first


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", [""]),
        ("abcdefg", ["abcdefg"]),
        ("ab cd\nef gh", ["ab cd\n", "ef gh"]),
        ("ab cd ef gh", ["ab cd ", "ef gh"]),
        ("abcdefghijk", ["abcdefg", "hijk"]),
        ("\n\n\nabcdefghi\nj", ["\n\n\n", "abcdefg", "hi\nj"]),
    ],
)
def test_a_long_text_is_cut_behind_a_line_break_or_else_a_space(text, parts):
    assert list(tokenizer.in_slices(text, 7)) == parts


def test_bpe_learns_the_same_merges_from_a_text_in_slices(monkeypatch):
    text = "".join(f"{' '.join(random_texts(3, seed=i))} the end of {WORDS}\n" for i in range(60))
    whole = tokenizer.bpe(documents_of([text]), vocab_size=400)
    monkeypatch.setattr(tokenizer, "SLICE", 500)
    assert tokenizer.bpe(documents_of([text]), vocab_size=400).ranks == whole.ranks


# Linux's own account of the memory of a process: what it holds now, and the most that it ever held.
MEMORY = """
import re
from pathlib import Path
from gptmini import tokenizer
from gptmini.data import Document
word = "abcdefghijklmnopqrstuvwxyz"
text = "".join(f"{word[i % 26:]}{i % 997} and {word[:i % 24]}\\n" for i in range(4000)) * 100
def kilobytes(name):
    return int(re.search(rf"{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
before = kilobytes("VmRSS")
tokenizer.bpe([Document("train", text)], vocab_size=300)
print(len(text), (kilobytes("VmHWM") - before) * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_bpe_takes_no_memory_that_grows_with_a_hundred_times_the_text():
    command = [sys.executable, "-c", MEMORY]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    n_characters, n_bytes = map(int, printed.split())
    assert n_bytes < 30 * n_characters


def test_bpe_learns_from_the_training_split_alone():
    learned = tokenizer.bpe(documents_of(["abab" * 9]), vocab_size=300)
    assert learned.ranks[256] == b"ab"

    with_val = tokenizer.bpe(documents_of(["abab" * 9], ["cdcd" * 99]), vocab_size=300)
    assert with_val.to_dict() == learned.to_dict()


@pytest.mark.parametrize("vocab_size", [256, 0, -1, 300.0, "300", True, None])
def test_bpe_refuses_a_vocabulary_without_room_for_the_bytes(vocab_size):
    with pytest.raises(ValueError, match=rf"^vocab_size must be from 257 .*, got {vocab_size!r}$"):
        tokenizer.bpe(documents_of(["text"]), vocab_size=vocab_size)


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


def test_bpe_of_a_long_text_learns_from_a_sample_of_all_of_it(monkeypatch):
    monkeypatch.setattr(tokenizer, "SAMPLED_SLICE", 64)
    texts = [f"text {i} of many texts, " * 20 + "\n" for i in range(200)]
    n_bytes = sum(map(len, texts))
    documents = documents_of(texts, ["held out"])
    samples = [list(tokenizer._training_slices(documents, n_bytes // 10)) for _ in range(2)]
    assert samples[0] == samples[1]
    assert 0.8 * n_bytes / 10 < sum(map(len, samples[0])) < 1.05 * n_bytes / 10
    places = ["".join(texts).index(some) for some in samples[0]]
    assert min(places) < n_bytes / 10
    assert max(places) > n_bytes * 8 / 10
    assert not any("held out" in some for some in samples[0])

    whole = list(tokenizer._training_slices(documents_of(texts), n_bytes))
    assert "".join(whole) == "".join(texts)
    assert list(tokenizer._training_slices(documents_of(["short"]), 1)) == ["short"]


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]))), end=st.booleans())
def test_texts_that_are_encoded_together_have_the_ids_of_each(texts, end):
    coder = tokenizer.bpe(documents_of(TRAIN), vocab_size=300)
    if end:
        texts = [*texts, "a<|endoftext|>b", "<|endoftext|", "|>"]
    peer = tiktoken.Encoding(
        "peer",
        pat_str=coder.pattern,
        mergeable_ranks={token: i for i, token in enumerate(coder.ranks)},
        special_tokens={},
    )
    batch = [ids.tolist() for ids in coder.encode_batch(texts)]
    assert batch == [peer.encode_ordinary(text) for text in texts]


def as_hugging_face_has_it(coder):
    """GPT-2's tokenizer in the tokenizers library: merges from the ranks, and Hugging Face's own byte level."""
    letter_of = {byte: letter for letter, byte in BYTE_OF_LETTER.items()}
    rank_of = {token: rank for rank, token in enumerate(coder.ranks)}

    def spelled(token):
        return "".join(letter_of[byte] for byte in token)

    def merged(token):
        """The two byte strings that were joined to a token: what merges of lower ranks make of its bytes."""
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            joined = [a + b for a, b in pairwise(parts)]
            i = min(range(len(joined)), key=lambda i: rank_of.get(joined[i], len(rank_of)))
            parts[i : i + 2] = [joined[i]]
        return spelled(parts[0]), spelled(parts[1])

    vocabulary = {spelled(token): rank for token, rank in rank_of.items()}
    merges = [merged(token) for token in coder.ranks if len(token) > 1]
    peer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    peer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return peer


# The letters of GPT-2's byte level by the byte that each stands for, as bytes_to_unicode of its code makes them.
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
BYTE_OF_LETTER = {chr(byte): byte for byte in PRINTABLE}
BYTE_OF_LETTER |= {chr(256 + i): byte for i, byte in enumerate(OTHERS)}

QUARTERS = [range(first, first + 0x44000) for first in range(0, 0x110000, 0x44000)]


@pytest.mark.slow
@pytest.mark.parametrize("codes", QUARTERS, ids=str)
def test_gpt2_ids_equal_those_of_hugging_face_for_every_character_in_five_contexts(gpt2, codes):
    peer = as_hugging_face_has_it(gpt2)
    characters = [chr(code) for code in codes if not 0xD800 <= code < 0xE000]
    for first in range(0, len(characters), 4096):
        some = characters[first : first + 4096]
        text = "".join(f"a{c}b {c} {c}{c}1{c}'{c}s\n" for c in some)
        assert gpt2.encode(text) == peer.encode(text).ids
