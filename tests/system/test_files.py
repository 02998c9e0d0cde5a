"""A file is written completely or not at all, whatever interrupts the write."""

import os
import subprocess
import sys

import pytest

from full_disk import files_of_at_most
from gptmini.system.files import new_folder, replace_by_symlink, replacing

# Starts to replace a file, then kills itself.
KILLED = """
import os, signal, sys
from pathlib import Path
from gptmini.system.files import replacing

with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def path(tmp_path):
    """Return an existing file, alone in its folder."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    return path


def test_a_file_takes_its_place_when_it_is_whole_and_on_disk(path, monkeypatch):
    order = []

    def noting(call):
        return lambda *arguments: (order.append(call.__name__), call(*arguments))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", noting(os.fsync))
        patch.setattr(os, "replace", noting(os.replace))
        with replacing(path) as file:
            file.write(b"ne")
            file.flush()
            assert path.read_bytes() == b"old"
            file.write(b"w")
    assert order == ["fsync", "replace"]
    assert path.read_bytes() == b"new"
    assert names(path.parent) == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_nothing_else(path, error):
    def write_half():
        with replacing(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        write_half()
    assert path.read_bytes() == b"old"
    assert names(path.parent) == ["file"]


def test_a_process_killed_amid_a_write_leaves_the_old_file(path):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert killed.returncode < 0
    assert path.read_bytes() == b"old"


def test_what_the_system_refuses_to_write_is_named(path):
    with (
        files_of_at_most(1000),
        pytest.raises(OSError, match=r"File too large: '.*/file'"),
        replacing(path) as file,
    ):
        file.write(bytes(5000))
    assert path.read_bytes() == b"old"
    assert names(path.parent) == ["file"]


def test_a_link_takes_the_place_of_a_file(path):
    for destination in ("new", "elsewhere"):
        replace_by_symlink(destination, path)
        assert path.readlink().name == destination
    assert names(path.parent) == ["file"]


def test_a_folder_is_complete_or_not_there(tmp_path):
    def make(*, error=None):
        with new_folder(tmp_path / "made") as folder:
            (folder / "file").touch()
            assert names(tmp_path) == [folder.name]
            if error is not None:
                raise error

    with pytest.raises(KeyError):
        make(error=KeyError())
    assert names(tmp_path) == []
    make()
    assert names(tmp_path) == ["made"]
    assert names(tmp_path / "made") == ["file"]


def test_a_folder_that_is_there_by_the_end_is_not_replaced(tmp_path):
    def make_second():
        with new_folder(tmp_path / "made"):
            (tmp_path / "made").mkdir()
            (tmp_path / "made" / "mine").touch()

    with pytest.raises(OSError, match="made"):
        make_second()
    assert names(tmp_path / "made") == ["mine"]
