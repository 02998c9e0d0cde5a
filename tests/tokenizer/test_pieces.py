"""The faster rule for pieces, against tiktoken by GPT-2's own rule and against Hugging Face's GPT-2."""

from itertools import pairwise

import pytest
import regex
import tiktoken
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from gptmini import tokenizer
from gptmini.tokenizer.pieces import MARK, SEPARATOR, SPLIT_PATTERN, in_short_runs, marked
from tokenizer.texts import END, TRAIN
from toys import documents_of

CODER = tokenizer.bpe(documents_of(TRAIN), vocab_size=300)

# By GPT-2's own rule, which looks ahead.
PEER = tiktoken.Encoding(
    "peer",
    pat_str=SPLIT_PATTERN,
    mergeable_ranks={token: i for i, token in enumerate(CODER.ranks)},
    special_tokens={},
)

# All white space of Unicode, what Python takes for white space beside it, what a mark could be mistaken for, and
# characters of each kind of piece.
SPACES = [chr(code) for code in range(0x110000) if regex.match(r"\s", chr(code))]
OTHERS = ["\x1c", "\x1f", MARK, SEPARATOR, *"aé1'.中😀", "'s", END]
SPACED = st.lists(st.sampled_from([" ", " ", "\n", *SPACES, *OTHERS])).map("".join)


@given(texts=st.lists(SPACED | st.text(st.characters(exclude_categories=["Cs"]))))
@example(texts=["a  ", "  b", " ", "", "  \u3000c"])
@example(texts=["a<|endoftext|>b", "<|endoftext|", "|>"])
def test_texts_that_are_encoded_together_have_the_ids_of_each_by_the_rule_of_gpt2(texts):
    batch = [ids.tolist() for ids in CODER.encode_batch(texts)]
    assert batch == [PEER.encode_ordinary(text) for text in texts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" ", " "),
        ("a b\nc", "a b\nc"),
        ("a \n\tb", "a \n|\tb"),
        ("a  ", "a  "),
        (f"a  {SEPARATOR}  b", f"a  {SEPARATOR} | b"),
        ("\u4e2d\u3000\xa0\u4e2d", "\u4e2d\u3000|\xa0\u4e2d"),
        ("a\x1c\x1cb", "a\x1c\x1cb"),
    ],
)
def test_the_last_character_of_white_space_before_a_word_is_marked(text, expected):
    assert marked(text) == expected.replace("|", MARK)


def test_a_text_may_hold_millions_of_white_space_characters_in_a_row():
    n = 2_000_000
    ids = next(CODER.encode_batch([" " * n + "a"]))
    tail = PEER.encode_ordinary("   a")[1:]
    assert ids[-len(tail) :].tolist() == tail
    assert CODER.byte_lengths()[ids].sum() == n + 1

    said = r"a million white-space characters in a row near a character U\+0000"
    with pytest.raises(ValueError, match=said):
        next(CODER.encode_batch([MARK + " " * n + "a"]))


@given(text=SPACED, longest=st.integers(1, 9))
def test_short_runs_are_the_text_cut_where_a_run_is_long(text, longest):
    parts = list(in_short_runs(text, longest))
    assert "".join(parts) == text
    for part in parts:
        assert all(len(run) <= longest for run in regex.findall(r"\s+|\S+", part))
    if all(len(run) <= longest for run in regex.findall(r"\s+|\S+", text)):
        assert parts == [text]


# The letters of GPT-2's byte level by the byte that each stands for, as bytes_to_unicode of its code makes them.
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
NOT_PRINTABLE = [byte for byte in range(256) if byte not in PRINTABLE]
LETTER_OF = {byte: chr(byte) for byte in PRINTABLE}
LETTER_OF |= {byte: chr(256 + i) for i, byte in enumerate(NOT_PRINTABLE)}


def as_hugging_face_has_it(coder):
    """GPT-2's tokenizer in the tokenizers library: merges from the ranks, and Hugging Face's own byte level."""
    rank_of = {token: rank for rank, token in enumerate(coder.ranks)}

    def spelled(token):
        return "".join(LETTER_OF[byte] for byte in token)

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


# All letters but Chinese and Korean ones, which no rule tells apart; of these and of the other planes some.
CODES = [*range(0x3400), *range(0x3400, 0xA000, 64), *range(0xA000, 0xAC00)]
CODES += [*range(0xAC00, 0xD800, 64), *range(0xE000, 0x20000, 8), *range(0x20000, 0x110000, 512)]


@pytest.mark.slow
def test_gpt2_ids_equal_those_of_hugging_face_for_characters_of_every_kind_in_five_contexts(gpt2):
    peer = as_hugging_face_has_it(gpt2)
    for first in range(0, len(CODES), 4096):
        some = map(chr, CODES[first : first + 4096])
        text = "".join(f"a{c}b {c} {c}{c}1{c}'{c}s\n" for c in some)
        assert gpt2.encode(text) == peer.encode(text).ids
