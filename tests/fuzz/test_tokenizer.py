"""A broken description of a tokenizer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.inputs import PICKLED, changed, changes, fuzz
from fuzz.outcomes import outcome
from gptmini import tokenizer
from toys import documents_of, lines

pytestmark = pytest.mark.slow  # together they take minutes

TOKENIZERS = [
    tokenizer.CharTokenizer("abc", end_of_text=True),
    tokenizer.byte([]),
    tokenizer.bpe(documents_of([lines(40)]), vocab_size=270),
]
FIELDS = [
    *PICKLED,
    "eA==",
    "eHg=",
    "eHg",
    "é",
    "eA==" * 10**5,
    {"char"},
    "aba",
    "ab\ud800",
    r"\S",
    r"[\s\S]",
]


@fuzz(400)
@given(data=st.data(), number=st.integers(0, 2))
def test_a_tokenizer_of_junk_is_refused_or_encodes_without_loss(data, number):
    original = TOKENIZERS[number].to_dict()
    a_broken_one = changes(original, FIELDS).map(lambda change: changed(original, change))
    state = data.draw(a_broken_one | st.sampled_from(FIELDS))

    if made := outcome(tokenizer.from_dict, state):
        text = state["characters"] if made.kind == "char" else "a cab, é \n<|endoftext|>"
        assert made.decode(made.encode(text)) == text
