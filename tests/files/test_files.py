"""What is written whole or not at all, whatever interrupts it."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gptmini.files import (
    ABANDONED,
    new_folder,
    replace_by_symlink,
    replacing,
)

# Begins to replace a file, and kills itself.
KILLED = """
import os, signal, sys
from pathlib import Path
from gptmini.files import replacing

with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_takes_its_place_when_it_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"ne")
        file.flush()
        assert path.read_bytes() == b"old"
        file.write(b"w")

    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write_half():
        with replacing(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        write_half()

    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_process_killed_amid_a_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert killed.returncode < 0
    assert path.read_bytes() == b"old"


def test_the_bytes_are_on_disk_before_the_name(tmp_path, monkeypatch):
    path = tmp_path / "file"
    flush = os.fsync
    rename = os.rename
    order = []

    def flush_and_note(descriptor):
        order.append("flush")
        flush(descriptor)

    def rename_and_note(one, two):
        order.append("rename")
        rename(one, two)

    monkeypatch.setattr(os, "fsync", flush_and_note)
    monkeypatch.setattr(os, "replace", rename_and_note)
    with replacing(path) as file:
        file.write(b"new")

    assert order == ["flush", "rename"]


def test_a_link_takes_the_place_of_a_file(tmp_path):
    (tmp_path / "old").write_bytes(b"old")
    replace_by_symlink("new", tmp_path / "old")
    replace_by_symlink("elsewhere", tmp_path / "old")
    assert (tmp_path / "old").readlink().name == "elsewhere"
    assert names(tmp_path) == ["old"]


def refusing(number):
    """A function that fails as the operating system does with this error."""

    def refuse(*arguments, **more):
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("error", ["ENOSPC", "EPERM"])
def test_a_link_that_cannot_be_made_leaves_the_old_file(tmp_path, monkeypatch, error):
    (tmp_path / "old").write_bytes(b"old")
    number = getattr(errno, error)
    monkeypatch.setattr(os, "symlink", refusing(number))

    with pytest.raises(OSError, match=os.strerror(number)):
        replace_by_symlink("new", tmp_path / "old")
    assert (tmp_path / "old").read_bytes() == b"old"
    assert names(tmp_path) == ["old"]


def test_a_file_system_without_permissions_holds_a_folder_too(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "chmod", refusing(errno.EPERM))
    with new_folder(tmp_path / "made") as folder:
        (folder / "file").touch()
    assert names(tmp_path / "made") == ["file"]


def test_a_folder_is_complete_or_not_there(tmp_path):
    def make_half():
        with new_folder(tmp_path / "made") as folder:
            (folder / "file").touch()
            raise KeyError

    with pytest.raises(KeyError):
        make_half()
    assert names(tmp_path) == []

    with new_folder(tmp_path / "made") as folder:
        (folder / "file").touch()
        assert not (tmp_path / "made").exists()
    assert names(tmp_path) == ["made"]
    assert names(tmp_path / "made") == ["file"]


def test_of_two_who_make_a_folder_the_first_one_stays(tmp_path):
    with new_folder(tmp_path / "made") as folder:
        (folder / "mine").touch()
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "theirs").touch()
    assert names(tmp_path / "made") == ["theirs"]
    assert names(tmp_path) == ["made"]


def test_what_another_user_left_is_not_looked_into(tmp_path, monkeypatch):
    (tmp_path / ".made.a.tmp").mkdir()

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)  # root may look into every folder
    with new_folder(tmp_path / "made"):
        pass
    monkeypatch.undo()
    assert names(tmp_path) == [".made.a.tmp", "made"]


@pytest.mark.parametrize("name", ["made", "m**a[d]e"])
def test_what_a_killed_process_left_is_removed_an_hour_later(tmp_path, name):
    abandoned = tmp_path / f".{name}.a.tmp"
    running = tmp_path / f".{name}.b.tmp"
    for folder in (abandoned, running):
        folder.mkdir()
        (folder / "file").touch()

    before = time.time() - ABANDONED - 60
    for path in (abandoned / "file", abandoned):
        os.utime(path, (before, before))
    with new_folder(tmp_path / name):
        pass
    assert names(tmp_path) == [f".{name}.b.tmp", name]

    # Whoever holds a lock knows that no other process makes the folder.
    (tmp_path / name).rmdir()
    with new_folder(tmp_path / name, is_locked=True):
        pass
    assert names(tmp_path) == [name]


def full(*arguments, **more):
    """Fail as a full disk does where a file is open: the system names no file then."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fill(path):
    """Replace a file by one that is larger than the system allows."""
    resource = pytest.importorskip("resource", reason="Windows has no limit of a file's size")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with replacing(path) as file:
            file.write(bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_the_system_refuses_to_write_is_named(tmp_path, monkeypatch):
    path = tmp_path / "file"
    with pytest.raises(OSError, match=r"File too large: '.*/file'"):
        fill(path)
    assert names(tmp_path) == []

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/file'"), replacing(path):
        pass
