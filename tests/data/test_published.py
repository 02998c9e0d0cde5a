"""Published texts: had once, checked, and refused when they are others."""

import hashlib
import os
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gptmini.data import published, readers
from gptmini.data.published import PublishedText
from gptmini.user_error import UserError
from refusals import refused_keys

SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


@pytest.fixture
def server():
    """An address that answers with the bytes in .text and counts the requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.requests += 1
            if self.path == "/endless":
                self.send_without_end(b"a" * 2**16)
                return
            if self.path == "/silent":
                self.server.is_over.wait(10)
                return
            is_known = self.path in ("/text", "/cut")
            self.send_response(200 if is_known else 404)
            if self.path == "/cut":
                self.send_header("Content-Length", str(len(self.server.text) + 7))
            self.end_headers()
            self.wfile.write(self.server.text)

        def send_without_end(self, piece):
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):  # the other side has closed the connection
                while not self.server.is_over.is_set():
                    self.wfile.write(piece)
                    self.server.n_sent += len(piece)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests = 0
    server.n_sent = 0
    server.is_over = threading.Event()
    server.text = b"0123456789" * 3
    server.url = f"http://127.0.0.1:{server.server_port}/text"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.is_over.set()
    server.shutdown()
    server.server_close()


def digest_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digits(url="", *, folder="downloads", sha256=None, path=None, val_fraction=0.1, **others):
    """The text of a server, or a local copy."""
    return PublishedText(
        name="digits",
        url=url,
        sha256=sha256,
        path=path,
        folder=str(folder),
        val_fraction=val_fraction,
        **others,
    )


def test_a_published_text_is_downloaded_once_and_checked(server, tmp_path):
    digest = hashlib.sha256(server.text).hexdigest()
    for may_download in (True, False):
        corpus = digits(
            server.url, sha256=digest, folder=tmp_path / "downloads", may_download=may_download
        )
        identity = {"corpus": "digits", "file": digest, "val_fraction": 0.1}
        assert (corpus.name, corpus.identity(digest_of)) == ("digits", identity)
        assert list(corpus.documents()) == [
            ("train", "0123456789" * 2 + "0123456", True),
            ("val", "789", True),
        ]

    assert server.requests == 1
    assert [path.name for path in (tmp_path / "downloads").iterdir()] == ["digits.txt"]


def test_nothing_is_downloaded_where_nobody_has_typed_from_where(server, tmp_path):
    said = "the text digits must be downloaded again, and only the run's folder says from where"
    with pytest.raises(UserError, match=said):
        digits(server.url, folder=tmp_path / "downloads", may_download=False)
    assert server.requests == 0
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.9])
def test_the_last_characters_are_held_out_in_parts_of_bounded_size(tmp_path, monkeypatch, fraction):
    monkeypatch.setattr(readers, "PIECE", 100)
    text = "Größe, \u65e5\u672c\r\n" * 50
    (tmp_path / "a.txt").write_bytes(text.encode("utf-8-sig"))
    corpus = digits(path=str(tmp_path / "a.txt"), val_fraction=fraction)
    found = list(corpus.documents())
    boundary = int(len(text) * (1 - fraction))
    for split, expected in (("train", text[:boundary]), ("val", text[boundary:])):
        parts = [document for document in found if document.split == split]
        assert "".join(part.text for part in parts) == expected
        assert [part.ends for part in parts] == [False] * (len(parts) - 1) + [True]
        assert max(len(part.text) for part in parts) <= 100


def test_another_text_than_the_pinned_one_is_refused(server, tmp_path):
    (tmp_path / "copy.txt").write_text("something else")
    given = str(tmp_path / "copy.txt")
    for path, place in ((given, given), (None, server.url)):
        wanted = (
            f"{place} must be the published text with sha256 {'0' * 64}, "
            "got [0-9a-f]{64}; .*data=text"
        )
        with pytest.raises(ValueError, match=wanted):
            digits(server.url, sha256="0" * 64, path=path, folder=tmp_path / "downloads")

    assert not (tmp_path / "downloads").exists()  # the download is not kept


def test_a_failed_download_names_address_and_remedy_and_leaves_nothing(server, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = f"http://127.0.0.1:{listener.getsockname()[1]}/text"

    cut_short = server.url.replace("/text", "/cut")
    for url in (closed, cut_short, server.url + "-is-not-here", "no-address"):
        wanted = rf"^could not download {url} \(.+\); give a local copy with data.path=\Z"
        with pytest.raises(UserError, match=wanted):
            digits(url, folder=tmp_path / "downloads")
    assert list(tmp_path.rglob("*")) == []


def test_a_download_without_end_is_given_up_after_the_largest_size(server, tmp_path):
    url = server.url.replace("/text", "/endless")
    with pytest.raises(
        UserError, match=rf"could not download {url} \(it is larger than 104,857,600"
    ):
        digits(url, folder=tmp_path / "downloads")

    # What was sent and not read lies in the buffers of the two sockets.
    assert 100 * 2**20 <= server.n_sent < 120 * 2**20
    assert list(tmp_path.rglob("*")) == []


def test_a_server_that_is_silent_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(published, "DOWNLOAD_TIMEOUT", 0.2)
    url = server.url.replace("/text", "/silent")
    with pytest.raises(UserError, match=rf"could not download {url} \(.*timed out"):
        digits(url, folder=tmp_path / "downloads")
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "../evil"),
        ("url", 5),
        ("sha256", 7),
        ("path", ["a.txt"]),
        ("folder", None),
        ("val_fraction", 1),
        ("val_fraction", "0.1"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused_before_the_download(server, tmp_path, key, value):
    folder = str(tmp_path / "downloads")
    arguments = {"name": "digits", "url": server.url, "folder": folder, "val_fraction": 0.1}
    optional = {"sha256": None, "path": None}
    assert refused_keys(PublishedText, **arguments | optional | {key: value}) == {key}
    assert server.requests == 0
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("name", ["missing.txt", "."])
def test_a_local_copy_must_be_a_file(tmp_path, name):
    with pytest.raises(ValueError, match=r"data\.path must be a file, got"):
        digits(path=str(tmp_path / name))


def test_tinyshakespeare_has_the_standard_split():
    path = os.environ.get("GPTMINI_SHAKESPEARE")
    if not path:
        pytest.skip("GPTMINI_SHAKESPEARE does not name a copy of tinyshakespeare")

    corpus = digits(sha256=SHAKESPEARE_SHA256, path=path)
    (_, train, _), (_, val, _) = corpus.documents()

    # The numbers are those that nanoGPT prints.
    assert (len(train), len(val), len(set(train + val))) == (1_003_854, 111_540, 65)
    assert train + val == Path(path).read_bytes().decode()


def test_a_local_copy_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "file.txt").write_bytes(b"abc\xff\xfe")
    corpus = digits(path=str(tmp_path / "file.txt"))
    with pytest.raises(ValueError, match=r"file\.txt must be UTF-8, got byte 0xff at offset 3"):
        list(corpus.documents())
