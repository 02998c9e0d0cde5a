"""The faster pattern gives the same pieces as GPT-2's own pattern in tiktoken."""

import pytest
import regex
import tiktoken
from hypothesis import example, given
from hypothesis import strategies as st

from gptmini import tokenizer
from gptmini.tokenizer.pieces import MARK, SEPARATOR, SPLIT_PATTERN
from tokenizer.texts import END, TRAIN
from toys import documents_of

CODER = tokenizer.bpe(documents_of(TRAIN), vocab_size=300)

# Uses GPT-2's own pattern with lookahead.
PEER = tiktoken.Encoding(
    "peer",
    pat_str=SPLIT_PATTERN,
    mergeable_ranks={token: i for i, token in enumerate(CODER.ranks)},
    special_tokens={},
)

# All white space of Unicode, other white space of Python, the marks themselves, and characters of each kind of piece.
SPACES = regex.findall(r"\s", "".join(map(chr, range(0x110000))))
OTHERS = ["\x1c", "\x1f", MARK, SEPARATOR, *"aé1'.中😀", "'s", END]
SPACED = st.lists(st.sampled_from([" ", " ", "\n", *SPACES, *OTHERS])).map("".join)


@pytest.mark.slow
@given(texts=st.lists(SPACED | st.text(st.characters(exclude_categories=["Cs"]))))
@example(texts=["a  ", "  b", " ", "", "  \u3000c"])
@example(texts=["a<|endoftext|>b", "<|endoftext|", "|>"])
def test_texts_that_are_encoded_together_have_the_ids_of_each_by_the_rule_of_gpt2(texts):
    batch = [ids.tolist() for ids in CODER.encode_batch(texts)]
    assert batch == [PEER.encode_ordinary(text) for text in texts]


@pytest.mark.slow
def test_a_text_may_hold_millions_of_white_space_characters_in_a_row():
    n = 2_000_000
    ids = next(CODER.encode_batch([" " * n + "a"]))
    tail = PEER.encode_ordinary("   a")[1:]
    assert ids[-len(tail) :].tolist() == tail
    assert CODER.byte_lengths()[ids].sum() == n + 1

    said = r"a million white-space characters in a row near U\+0000 .* tokenizer=byte"
    with pytest.raises(ValueError, match=said):
        next(CODER.encode_batch([MARK + " " * n + "a"]))
