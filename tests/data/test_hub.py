"""Datasets of the hub: which files are what, and a download from a server that answers as the hub does."""

import json
import subprocess
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pytest
from pyarrow import parquet

from gptmini.data.hub import Choice, choose_files, hub_text, place_of
from gptmini.user_error import UserError
from refusals import refused_keys

# Places of files in datasets on the hub, of the hub's own branch, and of FineWeb.
PLACES = {
    "data/train-00000-of-00004-2d5a1467fff1081b.parquet": ("default", "train"),
    "data/validation-00000-of-00001-869c898b519ad725.parquet": ("default", "validation"),
    "default/train/0000.parquet": ("default", "train"),
    "default/partial-train/0007.parquet": ("default", "train"),
    "wikitext-2-raw-v1/test-00000-of-00001.parquet": ("wikitext-2-raw-v1", "test"),
    "train.parquet": ("default", "train"),
    "dev.parquet": ("default", "validation"),
    "sample/10BT/000_00000.parquet": ("sample/10BT", "train"),
    "data/CC-MAIN-2013-20/000_00000.parquet": ("CC-MAIN-2013-20", "train"),
    "0000.parquet": ("default", "train"),
}


@pytest.mark.parametrize("path", PLACES)
def test_the_place_of_a_file_says_its_subset_and_split(path):
    assert place_of(path) == PLACES[path]


def test_validation_is_held_out_where_there_is_one_and_test_otherwise():
    files = ["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"]
    choice = Choice(None, "train", None)
    assert choose_files("d", files, choice) == ([files[0]], [files[1]])
    more = [*files, "data/validation-00000-of-00001.parquet"]
    assert choose_files("d", more, choice) == ([files[0]], [more[2]])
    assert choose_files("d", more, Choice(None, "train", "test")) == ([files[0]], [files[1]])
    assert choose_files("d", files[:1], choice) == ([files[0]], [])


@pytest.mark.parametrize(
    ("paths", "chosen", "said"),
    [
        ([], (None, "train", None), "must be a dataset with Parquet files, got d without any"),
        (
            ["a/train.parquet", "b/train.parquet"],
            (None, "train", None),
            "data.subset must be one of a, b, which d has, got None",
        ),
        (["train.parquet"], ("x", "train", None), "data.subset must be one of default, which d"),
        (["train.parquet"], (None, "x", None), "data.split must be one of train, which d has"),
        (["train.parquet"], (None, "train", "x"), "data.val_split must be one of train, which d"),
        (["train.parquet"], (None, "train", "train"), "another split than data.split, got train"),
    ],
)
def test_a_choice_that_is_not_there_is_refused_with_those_that_are(paths, chosen, said):
    with pytest.raises(UserError, match=said):
        choose_files("d", paths, Choice(*chosen))


TEXTS = {
    "data/train-00000-of-00002.parquet": ["one", "two"],
    "data/train-00001-of-00002.parquet": ["three"],
    "data/validation-00000-of-00001.parquet": ["held out"],
}


@pytest.fixture
def dataset(tmp_path):
    """A folder laid out as a dataset."""
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
    train = [("train", text, True) for text in ("one", "two", "three")]
    assert list(corpus.documents()) == [*train, ("val", "held out", True)]
    assert corpus.name == "dataset"
    assert not (tmp_path / "downloads").exists()


class Hub(BaseHTTPRequestHandler):
    """Answers the requests of huggingface_hub for one dataset, by the hub's published API."""

    commit = "a" * 40
    asked = []

    def do_GET(self):
        self.answer(with_body=True)

    def do_HEAD(self):
        self.answer(with_body=False)

    def answer(self, *, with_body):
        self.asked.append(self.path)
        path = self.path.partition("?")[0]
        prefix = f"/datasets/someone/stories/resolve/{self.commit}/"
        if path.startswith("/api/datasets/someone/stories"):
            names = [file.relative_to(self.root).as_posix() for file in self.root.rglob("*.*")]
            siblings = [{"rfilename": name} for name in sorted(names)]
            info = {"id": "someone/stories", "sha": self.commit, "siblings": siblings}
            body = json.dumps(info | {"tags": [], "private": False, "downloads": 0}).encode()
        elif path.startswith(prefix):
            body = (self.root / path.removeprefix(prefix)).read_bytes()
        else:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", self.commit)
        self.send_header("ETag", f'"{abs(hash(body))}"')
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub(dataset):
    """The address of a server that has the dataset someone/stories, and what it was asked for."""
    Hub.root = dataset
    Hub.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", Hub.asked
    server.shutdown()
    server.server_close()


DOWNLOAD = """
import sys
from gptmini.data import hub_text
corpus = hub_text(
    dataset=sys.argv[1],
    subset=None,
    split="train",
    val_split=None,
    revision=None,
    field="story",
    folder=sys.argv[2],
    val_fraction=0.5,
    on_error="fail",
)
print([document.text for document in corpus.documents()])
"""


def download(name, folder, address):
    """What another process, to which this server is the hub, reads of a dataset."""
    return subprocess.run(
        [sys.executable, "-c", DOWNLOAD, name, str(folder)],
        env={"PATH": "", "HF_ENDPOINT": address, "HOME": str(folder), "no_proxy": "*"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_dataset_is_downloaded_once(hub, tmp_path):
    address, asked = hub
    first = download("someone/stories", tmp_path / "downloads", address)
    assert first.stdout == "['one', 'two', 'three', 'held out']\n", first.stderr
    assert first.stderr == ""
    assert any("resolve" in path for path in asked)
    kept = tmp_path / "downloads" / "someone--stories"
    assert sorted(path.relative_to(kept).as_posix() for path in kept.rglob("*.parquet")) == [*TEXTS]

    asked.clear()
    second = download("someone/stories", tmp_path / "downloads", address)
    assert second.stdout == first.stdout
    assert asked == []

    for name in ("someone/else", "./absent", "~/absent"):
        missing = download(name, tmp_path / "downloads", address)
        said = f"gptmini.user_error.UserError: could not download the dataset {name} ("
        assert said in missing.stderr
        assert "data.dataset may also be a local folder" in missing.stderr
    assert [path.name for path in (tmp_path / "downloads").iterdir()] == ["someone--stories"]


def test_nothing_is_downloaded_where_nobody_has_typed_from_where(dataset, tmp_path):
    def read(**changes):
        corpus = text_of("someone/stories", tmp_path / "downloads", may_download=False, **changes)
        return [document.text for document in corpus.documents()]

    said = "the dataset someone/stories must be downloaded again, and only the run's folder says"
    with pytest.raises(UserError, match=said):
        read()
    kept = tmp_path / "downloads" / "someone--stories"
    kept.parent.mkdir()
    dataset.rename(kept)
    listed = {"commit": "a" * 40, "files": [*TEXTS, "data/test-00000-of-00001.parquet"]}
    (kept / "gptmini-files.json").write_text(json.dumps(listed))
    assert read() == ["one", "two", "three", "held out"]
    with pytest.raises(UserError, match=said):
        read(val_split="test")


def test_an_argument_that_does_not_fit_is_refused_before_the_network():
    assert refused_keys(partial(text_of, "", 5)) == {"dataset"}
    wrong = {"split": None, "val_fraction": 1, "on_error": "pass", "field": ""}
    assert refused_keys(partial(text_of, "a/b", "downloads"), **wrong) == set(wrong)
