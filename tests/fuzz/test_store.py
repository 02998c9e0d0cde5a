"""Broken files of prepared tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.inputs import DAMAGE, Made, damaged, fuzz, same
from fuzz.outcomes import outcome
from gptmini import tokenizer
from gptmini.data import prepare
from gptmini.data.store import TokenStore
from toys import Documents

pytestmark = pytest.mark.slow  # together they take minutes

FILES = ["meta.json", "train.bin", "train.index", "val.bin", "val.index"]


def read_store(path):
    """Counts and tokens of both splits, and what else a run asks of them."""
    store = TokenStore(path)
    counts = []
    tokens = []
    for split in ("train", "val"):
        ids = store.tokens(split)
        tokens.append((str(ids.dtype), ids.tolist(), store.document_ends(split).tolist()))
        counts.append((store.n_tokens(split), store.n_bytes(split), store.tokens_per_byte(split)))
    return counts, tokens, store.tokenizer_state, store.fingerprint


@pytest.fixture(scope="module", params=[tokenizer.character, tokenizer.byte])
def store(request, folder):
    """A prepared folder, what its files hold, and what they mean."""
    corpus = Documents(["the lazy dog", "jumps"], ["over"])
    path = prepare(corpus, request.param, folder / "prepared")[0].folder
    return Made(
        path=path,
        files={file.name: file.read_bytes() for file in path.iterdir()},
        tokens=read_store(path),
    )


@fuzz(100)
@given(name=st.sampled_from(FILES), damage=DAMAGE)
def test_prepared_files_of_damaged_bytes_are_refused_or_give_the_same_tokens(store, name, damage):
    for file, content in store.files.items():
        if file == name:
            content = damaged(content, damage)
        (store.path / file).write_bytes(content)

    if tokens := outcome(read_store, store.path):
        assert same(tokens, store.tokens)
