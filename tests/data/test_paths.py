"""Which files a user means by a path, and what is said of the others."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gptmini.data.paths import find_files, without_held_out
from gptmini.user_error import UserError


def found(path):
    """The files that a path means."""
    return find_files("data.path", path).files


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Twelve texts in three folders, .txt and .md in turn, and hidden ones; the folder above is the current one."""
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


def test_several_paths_are_taken_in_their_order_and_each_file_once(folder):
    (folder / "link.txt").symlink_to(folder / "part0" / "00.txt")
    (folder / "hard.txt").hardlink_to(folder / "part0" / "00.txt")
    assert len(found(folder)) == 12

    first = str(folder / "part1" / "04.txt")
    again = str(folder / "part1" / ".." / "part1" / "04.txt")
    files = found([first, str(folder / "part0" / "*.txt"), again])
    assert files == [folder / "part1" / "04.txt", *sorted((folder / "part0").glob("*.txt"))]


def test_held_out_files_are_left_out_by_whatever_name(folder):
    held_out = folder.parent / "linked.txt"
    held_out.hardlink_to(folder / "part0" / "00.txt")
    files = found(folder)
    assert without_held_out(files, [held_out]) == files[1:]
    with pytest.raises(UserError, match=r"^data\.path must name more than the files of data\.val"):
        without_held_out([held_out], files)


def test_a_folder_gives_what_begins_as_text_and_what_is_packed_or_of_records(tmp_path):
    texts = {
        "a": "é".encode() * 10_000,  # a character lies across the end of what is looked at
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
    assert [file.name for file in files.left_out] == [*others]


@pytest.mark.parametrize("name", ["a", "a.json.txt", "a.bin", "a[1].txt", ".a"])
def test_a_file_that_is_named_is_taken_whatever_its_name_is(tmp_path, name):
    (tmp_path / name).write_bytes(b"any\0bytes")
    assert found(f"{tmp_path}/{name}") == [tmp_path / name]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing.txt", "must be a file, a folder or a glob that matches, got .*missing.txt"),
        ("*.nothing", "must be a file, a folder or a glob that matches, got .*nothing"),
        ("empty", "must hold files of text, got the folder .*empty with none"),
        ("a.json", r"must name text, got .*a\.json; write a record on each line of a \.jsonl file"),
        ("a.tar.gz", r"must name text, got .*a\.tar\.gz; unpack it first"),
        ("*.DOCX", r"must name text, got .*a\.DOCX; convert it to a \.txt file"),
        ("pipe", "must be a regular file or a folder, got .*pipe, which is neither"),
    ],
)
def test_a_path_that_names_no_text_is_refused_with_what_to_do(tmp_path, name, said):
    (tmp_path / "empty").mkdir()
    for other in ("a.json", "a.tar.gz", "a.DOCX"):
        (tmp_path / other).write_text("Text enough.\n")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=rf"^data\.path {said}"):
        found(tmp_path / name)


@pytest.mark.parametrize("path", ["", []])
def test_an_empty_path_is_refused(path):
    with pytest.raises(UserError, match=r"^data\.path must .*, got an empty"):
        found(path)


READ_TWICE = """
from gptmini.data.paths import find_files
first, = find_files("data.path", "-").files
second, = find_files("data.path", ["-", "-"]).files
print(first == second, first.read_bytes() == second.read_bytes() == b"piped", first)
"""


def test_standard_input_is_kept_while_the_process_lasts():
    command = [sys.executable, "-c", READ_TWICE]
    process = subprocess.run(command, input=b"piped", capture_output=True, check=True)
    is_one, is_whole, path = process.stdout.decode().split()
    assert (is_one, is_whole) == ("True", "True")
    assert not Path(path).parent.exists()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_nothing_that_is_piped_is_refused(monkeypatch, is_terminal):
    standard_input = io.TextIOWrapper(io.BytesIO(b"typed" if is_terminal else b""))
    standard_input.isatty = lambda: is_terminal
    monkeypatch.setattr(sys, "stdin", standard_input)
    with pytest.raises(UserError, match=r"data\.path=- reads the text that is piped into the"):
        found("-")
