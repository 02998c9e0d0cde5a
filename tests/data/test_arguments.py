"""The arguments of corpora and batches are checked at once; pydantic names the key."""

from functools import partial

import pytest

import gptmini
from gptmini.data import Mixture, PydocCorpus, TextCorpus, TokenFiles
from refusals import refused_keys

TEXT = partial(TextCorpus, path="a.txt", val_fraction=0.1)
TOKENS = partial(TokenFiles, path="a.bin", val_path=None)
BATCHES = partial(gptmini.batches, None, batch_size=2, context_length=3, seed=1)
MIXTURE = partial(Mixture, val_fraction=0.1)
SOURCE = {"path": "a.txt", "weight": 1}


@pytest.mark.parametrize(
    ("make", "arguments", "wrong"),
    [
        (TEXT, {"path": 5, "val_path": ["a.txt", 2]}, {"path", "val_path"}),
        (TEXT, {"val_fraction": "0.1", "name": "../evil"}, {"val_fraction", "name"}),
        (TEXT, {"encoding": "utf-9"}, {"encoding"}),
        (TEXT, {"encoding": "base64", "filed": "text"}, {"encoding", "filed"}),
        (PydocCorpus, {"val_fraction": 1}, {"val_fraction"}),
        (TOKENS, {"val_fraction": 1}, {"val_fraction"}),
        (BATCHES, {"batch_size": 0, "seed": "1"}, {"batch_size", "seed"}),
        (MIXTURE, {"sources": {}}, {"sources"}),
        (MIXTURE, {"sources": {"a": SOURCE | {"weight": 0.5}}}, {"sources.a.weight"}),
        (MIXTURE, {"sources": {"a": SOURCE | {"weigth": 1}}}, {"sources.a.weigth"}),
        (MIXTURE, {"sources": {"a/b": SOURCE}}, {"sources.a/b.[key]"}),
    ],
)
def test_wrong_arguments_are_refused_by_their_keys(make, arguments, wrong):
    assert refused_keys(make, **arguments) == wrong
