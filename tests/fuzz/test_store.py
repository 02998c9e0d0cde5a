"""Broken files of prepared tokens."""

import hashlib
import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fuzz.inputs import DAMAGE, JUNK, NESTED, Made, changed, changes, damaged, fuzz, same
from fuzz.outcomes import outcome
from gptmini import tokenizer
from gptmini.data.preparation import prepare
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


@fuzz(300)
@given(data=st.data())
def test_prepared_files_that_claim_junk_are_refused_or_give_the_same_tokens(store, data):
    for file, content in store.files.items():
        (store.path / file).write_bytes(content)
    meta = json.loads(store.files["meta.json"])
    del meta["digest"]
    path, value = data.draw(changes(meta, [*JUNK, "float16", "int16", "O", *NESTED]))
    # Another number of bytes cannot be noticed: nothing else says how long the text was.
    assume(path[-1] != "bytes" or type(value) is not int or value < 1)

    # The text is spelled as it is digested. A nest stands for its name, which json could not write.
    text = json.dumps(changed(meta, (path, value)), sort_keys=True, separators=(",", ":"))
    if value in [*NESTED]:
        text = text.replace(f'"{value}"', NESTED[value])
    digest = hashlib.sha256(text.encode()).hexdigest()
    (store.path / "meta.json").write_text(f'{{"digest":"{digest}",{text[1:]}')

    if tokens := outcome(read_store, store.path):
        assert same(tokens[:2], store.tokens[:2])
