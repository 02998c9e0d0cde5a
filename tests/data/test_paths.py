"""The files that a path finds, and the notes on the others."""

import errno
import json
import os
from pathlib import Path

import pytest

from gptmini.data.reading.paths import find_files, short_name
from gptmini.system.errors import UserError


def found(path):
    """Return the files that a path finds."""
    return find_files("data.path", path).files


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Twelve texts in three folders, alternately .txt and .md, and hidden files. Changes to their parent folder."""
    for i in range(12):
        path = tmp_path / "texts" / f"part{i % 3}" / f"{i:02}.{'md' if i % 2 else 'txt'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"Text {i}.")
    (tmp_path / "texts" / ".git").mkdir()
    for name in (".hidden.txt", ".git/config.txt"):
        (tmp_path / "texts" / name).write_text("not taken")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "texts"


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("", range(12)),
        ("part1", range(1, 12, 3)),
        ("part*/*.txt", range(0, 12, 2)),
        ("**/*.md", range(1, 12, 2)),
        ("*/0[0-4].*", range(5)),
    ],
)
def test_the_files_are_those_of_a_shell_in_the_order_of_their_names(folder, pattern, wanted):
    in_order = [f"Text {i}." for i in sorted(wanted, key=lambda i: (i % 3, i))]
    for path in (folder / pattern, Path("texts") / pattern):  # absolute and relative
        assert [file.read_text() for file in found(path)] == in_order


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("dir/My Notes (2).v1.TXT", "my-notes-2-v1"),
        ("corpus.jsonl.gz", "corpus"),
        ("M\u00fcller.txt", "muller"),
        ("\u65e5\u672c.txt", ""),
        ("texts/part1/..", "texts"),
        ("texts/*.txt", "texts"),
        ("texts/part*.txt", "part"),
        ("*.txt", ""),
        ("-", "stdin"),
        (["a.txt", "b.txt", "c"], "a-and-2-more"),
        ("x" * 300, "x" * 30),  # longer than any file name
        (["x" * 40, "b"], f"{'x' * 19}-and-1-more"),  # 30 characters
    ],
)
def test_a_text_has_a_short_name_of_plain_letters(folder, path, name):
    assert short_name(path) == name


def test_several_paths_are_taken_in_their_order_and_each_file_once(folder):
    (folder / "link.txt").symlink_to(folder / "part0" / "00.txt")
    (folder / "hard.txt").hardlink_to(folder / "part0" / "00.txt")
    assert len(found(folder)) == 12

    first = str(folder / "part1" / "04.txt")
    again = str(folder / "part1" / ".." / "part1" / "04.txt")
    files = found([first, str(folder / "part0" / "*.txt"), again])
    assert files == [folder / "part1" / "04.txt", *sorted((folder / "part0").glob("*.txt"))]


def test_a_folder_gives_what_begins_as_text_and_what_is_packed_or_of_records(tmp_path):
    texts = {
        "a": "é".encode() * 10_000,  # a character crosses the end of the bytes that are checked
        "b.txt": b"x" + "é".encode() * 10_000,
        "c.txt": "wide".encode("utf-16"),
        "d.csv.gz": b"\x1f\x8b\0",
        "e.parquet": b"PAR1\0",
    }
    others = {
        "f.txt": b"",
        "g.txt": b"a\0b",
        "h.txt": "é".encode("latin-1"),
        "i.json": b"{}",
        "j.bin": b"ids",
        "k.index": b"places",
        "l.ckpt": b"weights",
        "m.json.gz": b"{}",
        "n.zip": b"PK",
    }
    for name, data in (texts | others).items():
        (tmp_path / name).write_bytes(data)
    files = find_files("data.path", tmp_path)
    assert [file.name for file in files.files] == [*texts]
    assert [file.name for file in files.without_text] == [*others]


# Files that gptmini writes, and files with the same names that other programs may write.
OWN = {
    "run": {"config.yaml": "version: 0.3.0\ntyped:\n- seed=2\n", "metrics.jsonl": '{"step": 1}\n'},
    "run of 0.2": {"config.yaml": "version: 0.2.0 # of gptmini, which wrote this run\nname: x\n"},
    "prepared": {
        "meta.json": json.dumps(
            dict.fromkeys(["format", "source", "builder", "fingerprint", "digest"])
        ),
        "skipped.txt": "a.jsonl, line 1",
    },
    "export": {
        "config.json": "{}",
        "README.md": "---\ntags:\n- gptmini\n---\n\nand exported by gptmini 0.3.0 as `X`.",
    },
}
OF_OTHERS = {
    "runs": {"config.yaml": "version: 3\nservices:\n  typed: {}\n", "a.txt": "A text."},
    "data": {"meta.json": '{"format": 3, "source": "web", "digest": 1}', "b.txt": "Text."},
    "prepared too": {"meta.json": "[" * 100_000, "c.txt": "Text."},
    "model": {"config.json": "{}", "README.md": "---\n---\nA model, trained by gptmini 0.3."},
    "export": {"README.md": "---\n---\nHow a model is exported by gptmini 0.3."},
    "sweep": {"sweep.yaml": "# All runs of this sweep are mine.\n", "d.txt": "Text."},
    "reports": {
        "a.html": "<!doctype html>\n<html lang=en><head><title>step,train/loss</title>",
        "a.csv": "text,step\nstep,train/loss\n",
        "steps.csv": "step,text\n1,train/loss\n",
    },
}


def write(folder, folders):
    """Write the files of folders; return the paths of files that can be read as text, in order."""
    paths = []
    for name, files in folders.items():
        (folder / name).mkdir(parents=True)
        for file, content in files.items():
            (folder / name / file).write_text(content)
            paths += [] if file.endswith(".json") else [folder / name / file]
    return sorted(paths)


def test_what_gptmini_wrote_is_known_by_contents_and_what_others_wrote_is_taken(tmp_path):
    texts = write(tmp_path / "texts", OF_OTHERS)
    paths = (tmp_path / "texts", f"{tmp_path}/texts/**/*.*[!n]")
    for path in paths:
        files = find_files("data.path", path)
        assert (files.files, files.written) == (texts, [])

    write(tmp_path / "texts" / "own", OWN)
    own = sorted(tmp_path / "texts" / "own" / name for name in OWN)
    for path in paths:
        files = find_files("data.path", path)
        assert (files.files, files.written) == (texts, own)
        (note,) = [note for note in files.notes() if "own" in note]
        assert str(own[0]) in note


def test_of_folders_and_globs_with_nothing_but_gptminis_own_the_error_names_it(tmp_path):
    write(tmp_path, OWN)
    for path in (tmp_path, tmp_path / "run", f"{tmp_path}/*/metrics.jsonl"):
        with pytest.raises(UserError, match=r"^data\.path .* by gptmini\): .*/run"):
            found(path)
    # A file, or a folder before the first star, that is given by name is always read.
    for path in (tmp_path / "run" / "metrics.jsonl", f"{tmp_path}/run/*.jsonl"):
        assert found(path) == [tmp_path / "run" / "metrics.jsonl"]


def test_linked_folders_are_followed_once_each_and_keep_their_own_names(tmp_path):
    outside = tmp_path / "outside"
    for name in ("texts/b", "outside/deep"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("texts/b/1.txt", "outside/2.txt", "outside/deep/3.txt", "aside.txt"):
        (tmp_path / name).write_text(name)
    before = found(tmp_path / "texts")

    texts = tmp_path / "texts"
    (texts / "a").symlink_to(texts / "b")  # a folder that is read anyway
    (texts / "loop").symlink_to(texts)
    (texts / "b" / "self").symlink_to("self")
    (texts / "gone").symlink_to("nowhere")
    (texts / ".hidden").symlink_to(outside)
    assert found(texts) == before == [texts / "b" / "1.txt"]

    (texts / "x").symlink_to(outside)
    (texts / "y").symlink_to(outside)
    (outside / "back").symlink_to(texts)
    (outside / "deeper").symlink_to(outside / "deep")
    files = [texts / "b" / "1.txt", texts / "x" / "2.txt", texts / "x" / "deep" / "3.txt"]
    assert found(texts) == files


def test_files_and_folders_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    closed = tmp_path / "closed"
    closed.mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("A text.")
    scandir = os.scandir

    def refusing(path):
        if os.fspath(path) == str(closed):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return scandir(path)

    # The superuser may read every file and folder.
    monkeypatch.setattr(os, "scandir", refusing)
    monkeypatch.setattr(os, "access", lambda file, mode: file.name != "b.txt")
    files = find_files("data.path", tmp_path)
    assert files.files == [tmp_path / "a.txt"]
    assert files.unreadable == [closed, tmp_path / "b.txt"]
    assert find_files("data.path", tmp_path / "*.txt").unreadable == [tmp_path / "b.txt"]
    with pytest.raises(UserError, match=rf"not readable\): {closed}"):
        found(closed)


@pytest.mark.parametrize("name", ["a", "a.json.txt", "a.bin", "a[1].txt", ".a"])
def test_a_file_that_is_named_is_taken_whatever_its_name_is(tmp_path, name):
    (tmp_path / name).write_bytes(b"any\0bytes")
    assert found(f"{tmp_path}/{name}") == [tmp_path / name]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing.txt", r"must match .*, got .*missing\.txt$"),
        ("*.nothing", r"must match .*, got .*nothing$"),
        ("empty", "must contain .*, got the folder .*empty$"),
        ("a.tar.gz", r".* \.tar files, got .*a\.tar\.gz; decompress"),
        ("a b.PDF", r".* \.pdf files, got .*a b\.PDF; run: pdftotext '.*a b\.PDF' '.*a b\.txt'$"),
        ("*.DOCX", r".* \.docx files, got .*a\.DOCX; run: pandoc .*=.*a\.txt .*a\.DOCX$"),
        ("a.doc", r".* \.doc files, got .*a\.doc; convert .* \.txt"),
        ("a.epub.gz", r".* \.epub files, got .*a\.epub\.gz; convert .* \.txt"),
        ("pipe", "must be a regular file or a folder, got .*pipe"),
    ],
)
def test_a_path_that_names_no_text_is_refused_with_what_to_do(tmp_path, name, said):
    (tmp_path / "empty").mkdir()
    for other in ("a.tar.gz", "a b.PDF", "a.DOCX", "a.doc", "a.epub.gz"):
        (tmp_path / other).write_text("Text enough.\n")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=rf"^data\.path {said}"):
        found(tmp_path / name)
