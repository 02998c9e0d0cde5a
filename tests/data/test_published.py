"""Published texts: downloaded once, checked, and refused if the digest differs."""

import hashlib
import os
import socket
import threading
from pathlib import Path

import pytest

from data.parts import by_split, digest_of
from data.web import serving
from gptmini.data import PublishedText
from gptmini.data.corpora import published
from gptmini.system.errors import UserError

SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


TEXT = b"0123456789" * 3


@pytest.fixture
def server():
    """A server of TEXT, with faults at other addresses."""
    is_over = threading.Event()

    def answer(path):
        if path == "/silent":
            is_over.wait(10)
        length = len(TEXT) + 7 * (path == "/cut")
        return 404 if path == "/missing" else 200, {"Content-Length": str(length)}, TEXT

    with serving(answer) as server:
        yield server
        is_over.set()


def digits(url="", *, folder="downloads", sha256=None, path=None, **others):
    """Open the text of a server, or a local copy."""
    return PublishedText(
        name="digits",
        url=url,
        sha256=sha256,
        path=path,
        folder=str(folder),
        val_fraction=0.1,
        **others,
    )


def test_a_published_text_is_downloaded_once_and_checked(server, tmp_path):
    digest = hashlib.sha256(TEXT).hexdigest()
    for may_download in (True, False):
        folder = tmp_path / "downloads"
        corpus = digits(server.url, sha256=digest, folder=folder, may_download=may_download)
        identity = {"file": digest, "val_fraction": 0.1}
        assert corpus.identity(digest_of) == identity
        assert by_split(corpus) == {"train": ["012345678901234567890123456"], "val": ["789"]}

    assert server.asked == ["/"]
    assert [path.name for path in (tmp_path / "downloads").iterdir()] == ["digits.txt"]


def test_nothing_is_downloaded_where_nobody_has_typed_from_where(server, tmp_path):
    said = "the text digits is missing, .* only a run folder names"
    with pytest.raises(UserError, match=said):
        digits(server.url, folder=tmp_path / "downloads", may_download=False)
    assert server.asked == []
    assert list(tmp_path.rglob("*")) == []


def test_another_text_than_the_pinned_one_is_refused(server, tmp_path):
    (tmp_path / "copy.txt").write_text("something else")
    given = str(tmp_path / "copy.txt")
    for path, place in ((given, given), (None, server.url)):
        said = f"{place} must have SHA-256 {'0' * 64}, got [0-9a-f]{{64}}; "
        with pytest.raises(UserError, match=said):
            digits(server.url, sha256="0" * 64, path=path, folder=tmp_path / "downloads")
    assert not (tmp_path / "downloads").exists()  # the download is not kept
    with pytest.raises(FileNotFoundError, match="absent"):
        digits(server.url, path="absent")


def test_a_failed_download_names_address_and_remedy_and_leaves_nothing(
    server, tmp_path, monkeypatch
):
    monkeypatch.setattr(published, "DOWNLOAD_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = f"http://127.0.0.1:{listener.getsockname()[1]}"

    for url, reason in (
        (closed, "refused"),
        (f"{server.url}/missing", "Not Found"),
        (f"{server.url}/cut", "7 more expected"),
        (f"{server.url}/silent", "timed out"),
        ("no-address", "unknown url"),
    ):
        said = rf"^cannot download {url} \(.*{reason}.*\); .* data\.path=FILE\Z"
        with pytest.raises(UserError, match=said):
            digits(url, folder=tmp_path / "downloads")
    assert list(tmp_path.rglob("*")) == []


def test_tinyshakespeare_has_the_standard_split():
    path = os.environ.get("GPTMINI_SHAKESPEARE")
    if not path:
        pytest.skip("GPTMINI_SHAKESPEARE does not name a copy of tinyshakespeare")

    splits = by_split(digits(sha256=SHAKESPEARE_SHA256, path=path))
    (train,), (val,) = splits["train"], splits["val"]
    # nanoGPT prints these numbers.
    assert (len(train), len(val), len(set(train + val))) == (1_003_854, 111_540, 65)
    assert train + val == Path(path).read_bytes().decode()
