"""Texts at addresses: downloaded once, and again after a change. A failed download loses nothing."""

import asyncio
import gzip
import json
import threading
from functools import partial
from types import SimpleNamespace

import fsspec
import pytest
from huggingface_hub import constants

from data.parts import by_split, digest_of
from data.web import serving
from gptmini.data import Mixture, TextCorpus
from gptmini.data.reading import downloads
from gptmini.system.errors import UserError

TEXT = b"0123456789" * 3


@pytest.fixture
def server(monkeypatch):
    """A server of .texts by path, with faults at other addresses."""
    monkeypatch.setattr(downloads, "DOWNLOAD_TIMEOUT", 0.2)
    is_over = threading.Event()

    def answer(path):
        path = path.partition("?")[0]
        if path in server.redirects:
            return 302, {"Location": server.redirects[path]}, b""
        if path == "/silent.txt":
            is_over.wait(10)
        body = server.texts.get(path, TEXT)
        length = len(body)
        if path == "/cut.txt" and server.methods[-1] == "GET":
            length += 7
        if path == "/less.txt" and server.methods[-1] == "HEAD":
            length += 7
        if path == "/more.txt" and server.methods[-1] == "HEAD":
            length -= 7
        headers = {server.header: f'"{hash(body)}"', "Content-Length": str(length)}
        if path.endswith(".gz"):
            headers["Content-Encoding"] = "gzip"
        return 404 if path == "/missing.txt" else 200, headers, body

    with serving(answer) as server:
        server.texts = {}
        server.redirects = {}
        server.header = "ETag"
        yield server
        is_over.set()


def text_at(address, folder, **others):
    return TextCorpus(address, 0.1, folder=str(folder), **others)


def files_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("header", ["ETag", "Last-Modified"])
def test_a_text_is_downloaded_once_and_again_after_a_change(server, tmp_path, capsys, header):
    server.header = header
    address = f"{server.url}/book.txt"
    for text, n_downloads in ((TEXT, 1), (TEXT, 1), (TEXT[::-1], 2)):
        server.texts["/book.txt"] = text
        corpus = text_at(address, tmp_path)
        assert by_split(corpus) == {None: [text.decode()]}
        assert corpus.folder_name == "book"
        assert server.methods.count("GET") == n_downloads
    assert capsys.readouterr().err.count(f"downloading {address}") == 2
    assert files_in(tmp_path) == ["book.txt", "version.json"]


def test_without_the_server_the_copy_is_used(server, tmp_path, capsys):
    address = f"{server.url}/book.txt"
    corpus = text_at(address, tmp_path)
    server.redirects["/book.txt"] = f"{server.url}/missing.txt"
    again = text_at(address, tmp_path)
    assert again.identity(digest_of) == corpus.identity(digest_of)
    said = capsys.readouterr().err
    assert f"{address} (404" in said
    assert str(corpus.files[0]) in said


def test_a_stored_run_contacts_no_server(server, tmp_path):
    address = f"{server.url}/book.txt"
    mixed = {"book": {"path": address, "weight": 1}}

    def read(may_download):
        place = {"folder": str(tmp_path), "may_download": may_download}
        return TextCorpus(address, 0.1, **place), Mixture(mixed, 0.1, **place)

    with pytest.raises(UserError, match=f"the text {address} is missing, .* only a run folder"):
        read(may_download=False)
    with pytest.raises(UserError, match=r"data\.sources\.book .* only a run folder"):
        Mixture(mixed, 0.1, folder=str(tmp_path), may_download=False)
    assert server.asked == []
    read(may_download=True)
    n_asked = len(server.asked)
    read(may_download=False)
    assert len(server.asked) == n_asked


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.txt", "404 Not Found"),
        ("cut.txt", "received 30 of 37 bytes"),
        ("less.txt", "promised 37 bytes and sent 30"),
        ("more.txt", "promised 23 bytes and sent 30"),
        ("silent.txt", "[Tt]imeout"),
        ("to-file.txt", "redirects to file://"),
        ("to-ftp.txt", "redirects to ftp://host"),
        ("to-itself.txt", "TooManyRedirects"),
    ],
)
def test_a_failed_download_says_why_in_one_line_and_leaves_nothing(server, tmp_path, name, reason):
    server.redirects = {
        "/to-file.txt": "file:///etc/passwd",
        "/to-ftp.txt": "ftp://host/book.txt",
        "/to-itself.txt": "/to-itself.txt",
    }
    address = f"{server.url}/{name}"
    with pytest.raises(UserError, match=rf"^cannot download {address} \(.*({reason}).*\); .*\Z"):
        text_at(address, tmp_path)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    ("start", "command"), [(b"%PDF-1.4", "pdftotext"), (b"PK\x03\x04", "pandoc")]
)
def test_a_document_without_its_extension_is_refused_and_not_kept(server, tmp_path, start, command):
    server.texts["/paper.txt"] = start
    with pytest.raises(UserError, match=rf"^data\.path does not support .*; download .* {command}"):
        text_at(f"{server.url}/paper.txt", tmp_path)
    assert files_in(tmp_path) == []


def test_a_web_page_is_named(server, tmp_path, capsys):
    server.texts["/book"] = b"\n<!DOCTYPE html><p>Text</p>"
    text_at(f"{server.url}/book", tmp_path)
    assert "warning: this is a web page" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_no_fault_of_the_network(server, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        text_at(f"{server.url}/book.txt", tmp_path / "file")


@pytest.mark.parametrize(
    ("source", "target", "is_allowed"),
    [
        ("https://a/b", "http://a/b", False),
        ("https://a/b", "//c/d", True),
        ("https://a/b", "/d", True),
        ("http://a/b", "https://a/b", True),
        ("http://a/b", "http://c/b", True),
    ],
)
def test_a_redirect_never_leaves_https(source, target, is_allowed):
    response = SimpleNamespace(headers={"Location": target})
    check = downloads._check_redirect(None, None, SimpleNamespace(url=source, response=response))
    if is_allowed:
        asyncio.run(check)
    else:
        with pytest.raises(ConnectionError, match="redirects to http://a"):
            asyncio.run(check)


def test_a_copy_keeps_the_extensions_of_its_address_and_stores_no_token(server, tmp_path):
    packed = gzip.compress(json.dumps({"text": "one"}).encode())
    server.texts["/a%20b.jsonl.gz"] = packed
    corpus = text_at(f"{server.url}/a%20b.jsonl.gz?token=secret&x=1", tmp_path)
    assert by_split(corpus) == {None: ["one"]}
    assert corpus.files[0].name == "a-b.jsonl.gz"
    assert corpus.files[0].read_bytes() == packed
    stored = [(str(path), path.is_file() and path.read_bytes()) for path in tmp_path.rglob("*")]
    assert "secret" not in str(stored)


def test_several_addresses_and_files_are_one_text(server, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    server.texts = {"/book.txt": b"one", "/other/book.txt": b"two"}
    paths = [f"{server.url}{path}" for path in server.texts]
    val_path = f"{server.url}/held.txt"
    corpus = text_at([*paths, str(tmp_path / "mine.txt")], tmp_path, val_path=val_path)
    assert by_split(corpus) == {"train": ["one", "two", "mine"], "val": [TEXT.decode()]}


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ftp://host/book.txt", r"data\.path must .*, got ftp://"),
        ("file:///etc/passwd", r"data\.path must .*, got file://"),
        ("https://me:secret@host/book.txt", r"data\.path must not contain a password"),
        (
            "https://host/book.pdf?x=1",
            r"data\.path does not support \.pdf files, got book\.pdf; download the file, and run: pdf",
        ),
        ("https://[host/book.txt", r"cannot download https://\[host"),
    ],
)
def test_an_address_that_cannot_be_read_is_refused(tmp_path, address, said):
    with pytest.raises(UserError, match=said) as caught:
        text_at(address, tmp_path)
    assert "secret" not in str(caught.value)
    assert files_in(tmp_path) == []


def test_a_file_of_the_hub_is_downloaded_once_and_again_after_a_change(tmp_path, monkeypatch):
    file = {"type": "file", "path": "file.jsonl", "size": len('{"text": "one"}')}
    dataset = {"id": "someone/stories", "sha": "a" * 40}

    def answer(path):
        path = path.partition("?")[0]
        as_json = {"Content-Type": "application/json"}
        if path == "/api/datasets/someone/stories":
            return 200, as_json, json.dumps(dataset).encode()
        if path.startswith("/api/datasets/someone/stories/tree/"):
            return 200, as_json, json.dumps([file]).encode()
        is_file = path.startswith("/datasets/someone/stories/resolve/")
        return 200 if is_file else 404, {}, json.dumps({"text": file["oid"]}).encode()

    with serving(answer) as server:
        at_server = partial(fsspec.filesystem, endpoint=server.url)
        monkeypatch.setattr(fsspec, "filesystem", at_server)
        # Other tests of this process may have imported huggingface_hub with HF_HUB_OFFLINE set.
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        for text, n_downloads in (("one", 1), ("one", 1), ("two", 2)):
            file["oid"] = text
            corpus = text_at("hf://datasets/someone/stories/file.jsonl", tmp_path)
            assert by_split(corpus) == {None: [text]}
            assert sum("/resolve/" in path for path in server.asked) == n_downloads
        for name, reason in (("stories/none.jsonl", "none.jsonl"), ("stories", "folder")):
            with pytest.raises(UserError, match=rf"^cannot download .* \(.*{reason}.*\)"):
                text_at(f"hf://datasets/someone/{name}", tmp_path)
