"""Datasets of the hub: subset and split of each file, and downloads from a server with the hub's API."""

import json
from functools import partial
from pathlib import Path

import huggingface_hub
import pyarrow as pa
import pytest
from pyarrow import parquet

from data.parts import by_split
from data.web import serving
from gptmini.data.corpora.hub import choose_files, hub_text
from gptmini.system.errors import UserError

# Training and held-out files in datasets on the hub, on the branch with converted files, and in FineWeb.
LAYOUTS = [
    (
        "data/train-00000-of-00004-2d5a1467fff1081b.parquet",
        "data/validation-00000-of-00001-869c898b519ad725.parquet",
    ),
    ("default/train/0000.parquet", "default/test/0000.parquet"),
    ("default/partial-train/0007.parquet", "default/partial-validation/0000.parquet"),
    ("train.parquet", "dev.parquet"),
    ("sample/10BT/000_00000.parquet", None),
    ("data/CC-MAIN-2013-20/000_00000.parquet", None),
    ("0000.parquet", "validation.parquet"),
]


def chosen(paths, subset=None, split="train", val_split=None):
    return choose_files("d", paths, subset=subset, split=split, val_split=val_split)


@pytest.mark.parametrize(("train", "val"), LAYOUTS)
def test_the_paths_of_files_say_their_splits(train, val):
    held_out = [] if val is None else [val]
    assert chosen([train, *held_out]) == ([train], held_out)


def test_validation_is_held_out_where_there_is_one_and_test_otherwise():
    files = ["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"]
    more = [*files, "data/validation-00000-of-00001.parquet"]
    assert chosen(more) == ([files[0]], [more[2]])
    assert chosen(more, val_split="test") == ([files[0]], [files[1]])
    assert chosen(more, split="test") == ([files[1]], [more[2]])
    assert chosen(files) == ([files[0]], [files[1]])
    assert chosen(files[:1]) == ([files[0]], [])
    # Without a file that is named train, no file of another split is trained on.
    assert chosen(["a/0.parquet", "a/test.parquet", "a/dev.parquet"])[0] == ["a/0.parquet"]


def test_a_subset_is_a_folder():
    files = [
        "a/train-0.parquet",
        "data/b/test/0.parquet",
        "data/b/train/0.parquet",
        "../b/c.parquet",
    ]
    assert chosen(files, "a") == (["a/train-0.parquet"], [])
    assert chosen(files, "b") == (["data/b/train/0.parquet"], ["data/b/test/0.parquet"])


@pytest.mark.parametrize(
    ("paths", "choice", "said"),
    [
        ([], {}, "data.split=train .* files of d, got none"),
        (["a/train.parquet", "b/train.parquet"], {}, r"data.subset .* \(a, b\), got None"),
        (["a/train.parquet"], {"subset": "b"}, "data.subset=b .* got a/train.parquet"),
        (["train.parquet"], {"val_split": "train"}, "data.val_split must be different, got train"),
    ],
)
def test_a_choice_that_is_not_there_is_refused_with_those_that_are(paths, choice, said):
    with pytest.raises(UserError, match=said):
        chosen(paths, **choice)


TEXTS = {
    "data/train-00000-of-00002.parquet": ["one", "two"],
    "data/train-00001-of-00002.parquet": ["three"],
    "data/validation-00000-of-00001.parquet": ["held out"],
}


@pytest.fixture
def dataset(tmp_path):
    """A local folder with the layout of a dataset."""
    for name, texts in TEXTS.items():
        file = tmp_path / "dataset" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.table({"story": texts, "other": texts}), file)
    (tmp_path / "dataset" / "README.md").write_text("About it.")
    return tmp_path / "dataset"


def text_of(dataset, folder, **changes):
    arguments = {
        "subset": None,
        "split": "train",
        "val_split": None,
        "revision": None,
        "field": "story",
        "val_fraction": 0.5,
        "on_error": "fail",
    }
    return hub_text(dataset=str(dataset), folder=str(folder), **arguments | changes)


def test_a_local_folder_is_read_as_a_dataset(dataset, tmp_path):
    corpus = text_of(dataset, tmp_path / "downloads", may_download=False)
    assert by_split(corpus) == {"train": ["one", "two", "three"], "val": ["held out"]}
    assert corpus.name == "dataset"
    assert not (tmp_path / "downloads").exists()


COMMIT = "a" * 40


@pytest.fixture
def hub(dataset, monkeypatch):
    """A server that answers like the hub about the dataset someone/stories. It lists .names for each address."""

    def answer(path):
        path = path.partition("?")[0]
        prefix = f"/datasets/someone/stories/resolve/{COMMIT}/"
        body = None
        if path in server.names:
            siblings = [{"rfilename": name} for name in server.names[path]]
            listed = {"id": "someone/stories", "sha": COMMIT, "siblings": siblings}
            body = json.dumps(listed).encode()
        elif path.startswith(prefix):
            body = (dataset / path.removeprefix(prefix)).read_bytes()
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{abs(hash(body))}"'}
        return 404 if body is None else 200, headers, body or b""

    with serving(answer) as server:
        server.names = {}
        monkeypatch.setattr(huggingface_hub, "HfApi", partial(huggingface_hub.HfApi, server.url))
        # Other tests of this process may have imported huggingface_hub with HF_HUB_OFFLINE set.
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield server


API = "/api/datasets/someone/stories"


# The second is the branch with the Parquet files that the hub converted from other formats.
@pytest.mark.parametrize("address", [API, f"{API}/revision/refs%2Fconvert%2Fparquet"])
def test_a_dataset_is_downloaded_once(hub, tmp_path, address):
    hub.names = {API: ["README.md"], address: ["README.md", *TEXTS]}
    for _ in range(2):
        corpus = text_of("someone/stories", tmp_path / "downloads")
        assert by_split(corpus) == {"train": ["one", "two", "three"], "val": ["held out"]}
    resolved = [path for path in hub.asked if "resolve" in path]
    assert {path.rpartition("/")[2] for path in resolved} == {Path(name).name for name in TEXTS}

    hub.asked.clear()
    text_of("someone/stories", tmp_path / "downloads")
    assert hub.asked == []
    for name in ("someone/else", "./absent"):
        said = rf"cannot download the dataset {name} \(.*data\.dataset may also be a local folder"
        with pytest.raises(UserError, match=said):
            text_of(name, tmp_path / "downloads")
    assert [path.name for path in (tmp_path / "downloads").iterdir()] == ["someone--stories"]


def test_nothing_is_downloaded_where_nobody_has_typed_from_where(dataset, tmp_path):
    def read(**changes):
        corpus = text_of("someone/stories", tmp_path / "downloads", may_download=False, **changes)
        return by_split(corpus)

    said = "the dataset someone/stories is missing, .* only a run folder names"
    with pytest.raises(UserError, match=said):
        read()
    kept = tmp_path / "downloads" / "someone--stories"
    kept.parent.mkdir()
    dataset.rename(kept)
    listed = {"commit": "a" * 40, "files": [*TEXTS, "data/test-00000-of-00001.parquet"]}
    (kept / "gptmini-files.json").write_text(json.dumps(listed))
    assert read() == {"train": ["one", "two", "three"], "val": ["held out"]}
    with pytest.raises(UserError, match=said):
        read(val_split="test")
