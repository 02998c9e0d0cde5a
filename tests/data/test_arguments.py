"""The arguments of corpora and batches are checked at once; pydantic names the key."""

from functools import partial

import pytest

import gptmini
from gptmini.data import PublishedText, PydocCorpus, TextCorpus, TokenFiles
from gptmini.data.hub import hub_text
from gptmini.data.mixture import Mixture
from refusals import refused_keys

SOURCE = {"path": "a.txt", "weight": 1}
TEXT = partial(TextCorpus, path="a.txt", val_fraction=0.1)
PUBLISHED = partial(
    PublishedText,
    name="digits",
    url="http://localhost:1/",
    sha256=None,
    path=None,
    folder="downloads",
    val_fraction=0.1,
)
BATCHES = partial(gptmini.batches, None, batch_size=2, context_length=3, seed=1)
HUB = partial(
    hub_text,
    dataset="a/b",
    subset=None,
    split="train",
    val_split=None,
    revision=None,
    field="text",
    folder="downloads",
    val_fraction=0.1,
    on_error="fail",
)


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (TEXT, {"path": 5}),
        (TEXT, {"val_path": ["a.txt", 2]}),
        (TEXT, {"val_fraction": 0}),
        (TEXT, {"val_fraction": "0.1"}),
        (TEXT, {"name": "../evil"}),
        (TEXT, {"field": ""}),
        (TEXT, {"separator": ""}),
        (TEXT, {"encoding": "utf-9"}),
        (TEXT, {"encoding": "base64"}),
        (TEXT, {"on_error": "pass"}),
        (TEXT, {"filed": "text"}),
        (PUBLISHED, {"name": "../evil"}),
        (PUBLISHED, {"val_fraction": 1}),
        (PydocCorpus, {"val_fraction": 1}),
        (partial(TokenFiles, path="a.bin", val_path=None), {"val_fraction": 1}),
        (BATCHES, {"batch_size": 0}),
        (BATCHES, {"context_length": 2.0}),
        (BATCHES, {"seed": "1"}),
        (BATCHES, {"start_step": -1}),
        (HUB, {"dataset": ""}),
        (HUB, {"val_fraction": 1, "on_error": "pass", "field": ""}),
    ],
)
def test_a_wrong_argument_is_refused_by_its_key(make, wrong):
    assert refused_keys(make, **wrong) == {*wrong}


@pytest.mark.parametrize(
    ("sources", "key"),
    [
        ({}, ""),
        ({"a": {"path": "a.txt"}}, ".a.weight"),
        ({"a": SOURCE | {"weight": 0.5}}, ".a.weight"),
        ({"a": SOURCE | {"weight": 0}}, ".a.weight"),
        ({"a": SOURCE | {"weight": 10_001}}, ".a.weight"),
        ({"a": SOURCE | {"weigth": 1}}, ".a.weigth"),
        ({"a/b": SOURCE}, ".a/b.[key]"),
    ],
)
def test_a_wrong_source_of_a_mixture_is_refused_by_its_key(sources, key):
    assert refused_keys(Mixture, sources=sources, val_fraction=0.1) == {f"sources{key}"}
