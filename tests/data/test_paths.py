"""Which files a user means by a path, and what is said of the others."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gptmini.data.paths import find_files, without_held_out
from gptmini.user_error import UserError


@pytest.fixture
def folder(tmp_path):
    """Twenty texts in three folders, .txt and .md in turn, and files that are no text."""
    for i in range(20):
        suffix = "md" if i % 2 else "txt"
        path = tmp_path / "texts" / f"part{i % 3}" / f"{i:02}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"Text {i}.")
    (tmp_path / "texts" / "picture.png").write_bytes(b"\x89PNG\r\n\x00")
    (tmp_path / "texts" / ".hidden.txt").write_text("not taken")
    (tmp_path / "texts" / ".git").mkdir()
    (tmp_path / "texts" / ".git" / "config").write_text("not taken")
    return tmp_path / "texts"


def found(path):
    """The files that a path means."""
    return find_files("data.path", path).files


@pytest.mark.parametrize("pattern", ["", "part*/*.txt", "**/*.md", "part1", "*/0[0-4].*"])
def test_the_files_are_those_of_a_shell_in_the_order_of_their_names(folder, monkeypatch, pattern):
    monkeypatch.chdir(folder.parent)
    wanted = {
        "": range(20),
        "part*/*.txt": range(0, 20, 2),
        "**/*.md": range(1, 20, 2),
        "part1": range(1, 20, 3),
        "*/0[0-4].*": range(5),
    }
    in_order = [f"Text {i}." for i in sorted(wanted[pattern], key=lambda i: (i % 3, i))]
    for path in (folder / pattern, Path("texts") / pattern):  # absolute and relative
        assert [file.read_text() for file in found(path)] == in_order


def test_a_star_stands_for_no_hidden_name(folder):
    assert len(found(folder / "**" / "*.txt")) == 10
    assert found(folder / ".*.txt") == [folder / ".hidden.txt"]


def test_several_paths_are_taken_in_their_order_and_each_file_once(folder):
    first = str(folder / "part1" / "04.txt")
    files = found([first, str(folder / "part0" / "*.txt"), first])
    assert files == [folder / "part1" / "04.txt", *sorted((folder / "part0").glob("*.txt"))]


def test_a_file_of_several_names_is_taken_once(folder):
    (folder / "link.txt").symlink_to(folder / "part0" / "00.txt")
    (folder / "hard.txt").hardlink_to(folder / "part0" / "00.txt")
    assert len(found(folder)) == 20
    several = [str(folder / "part0" / "00.txt"), str(folder / "part1" / ".." / "part0" / "00.txt")]
    assert found(several) == [folder / "part0" / "00.txt"]


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


@pytest.mark.parametrize("name", ["a", "a.json.txt", "a.log", "a.bin", "a[1].txt", "~a"])
def test_a_file_that_is_named_is_taken_whatever_its_name_is(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(b"any\0bytes")
    assert found(f"{tmp_path}/{name}") == [tmp_path / name]


@pytest.mark.parametrize("name", ["missing.txt", "missing/*.txt", "*.nothing", "empty_folder"])
def test_a_path_that_matches_no_file_is_refused(tmp_path, name):
    (tmp_path / "empty_folder").mkdir()
    with pytest.raises(ValueError, match=r"must (be|hold) .*got") as caught:
        found(tmp_path / name)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("a.json", r"write a record on each line of a \.jsonl file, or rename it to \.txt"),
        ("a.zip", "unpack it first"),
        ("a.tar.gz", "unpack it first"),
        ("a.pdf", r"convert it to a \.txt file"),
        ("a.DOCX", r"convert it to a \.txt file"),
    ],
)
def test_a_file_that_is_no_plain_text_is_refused_with_what_to_do(tmp_path, name, remedy):
    (tmp_path / name).write_text("Text enough.\n")
    message = rf"data\.path must name text, got .*{name}; .*{remedy}"
    for path in (tmp_path / name, tmp_path / "*"):
        with pytest.raises(UserError, match=message):
            found(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_a_pipe_is_refused_as_what_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(
        UserError, match=r"must be a regular file or a folder, got .*pipe\.txt, which is"
    ):
        found(tmp_path / "pipe.txt")


@pytest.mark.parametrize("path", ["", []])
def test_a_path_that_names_nothing_is_refused(path):
    with pytest.raises(UserError, match=r"^data\.path must .*, got an empty"):
        find_files("data.path", path)


def test_held_out_files_are_left_out_by_whatever_name(folder):
    held_out = folder.parent / "linked.txt"
    held_out.hardlink_to(folder / "part0" / "00.txt")
    files = found(folder)
    assert without_held_out(files, [held_out]) == files[1:]
    with pytest.raises(UserError, match=r"^data\.path must name more than the files of data\.val"):
        without_held_out([held_out], files)


READ_TWICE = """
from gptmini.data.paths import find_files
first, = find_files("data.path", "-").files
second, = find_files("data.path", ["-", "-"]).files
print(first == second, first.read_bytes() == second.read_bytes() == b"piped", first)
"""


def test_standard_input_is_kept_while_the_process_lasts():
    process = subprocess.run(
        [sys.executable, "-c", READ_TWICE],
        input=b"piped",
        capture_output=True,
        check=True,
    )
    is_one, is_whole, path = process.stdout.decode().split()
    assert (is_one, is_whole) == ("True", "True")
    assert not Path(path).parent.exists()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_nothing_that_is_piped_is_refused(monkeypatch, is_terminal):
    standard_input = io.TextIOWrapper(io.BytesIO(b"typed" if is_terminal else b""))
    standard_input.isatty = lambda: is_terminal
    monkeypatch.setattr(sys, "stdin", standard_input)
    with pytest.raises(
        UserError, match=r"data\.path=- reads the text that is piped into the command"
    ):
        find_files("data.path", "-")
