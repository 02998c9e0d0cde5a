"""A place that cannot be written is named in the one line that says so, with the keys that lead elsewhere."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from commands.resuming.readings import assert_refused

FULL = Path("/dev/full")  # Linux: every write to it fails as on a full disk


def read_only(monkeypatch, folder, error=errno.EROFS):
    """Let nothing be made in a folder, as on a read-only disk; permissions would not do, since root may write."""
    mkdir = os.mkdir

    def refuse(path, *arguments, **more):
        if Path(path).absolute().is_relative_to(folder):
            raise OSError(error, os.strerror(error), str(path))
        mkdir(path, *arguments, **more)

    monkeypatch.setattr(os, "mkdir", refuse)


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES])
def test_a_read_only_place_names_the_keys_that_lead_elsewhere(
    script, short, prepared, tmp_path, monkeypatch, error
):
    read_only(monkeypatch, tmp_path, error)
    reason = os.strerror(error)

    both = f"data: {reason}; data_dir= and runs_dir= name other folders"
    assert_refused(script("train", *short), both)
    assert_refused(script("prepare", *prepared), f"data: {reason}; data_dir= names another folder")


def test_a_read_only_folder_of_runs_names_its_key(script, short, prepared, tmp_path, monkeypatch):
    assert script("prepare", *prepared).code == 0
    read_only(monkeypatch, tmp_path / "runs")
    said = "Read-only file system; runs_dir= names another folder"
    assert_refused(script("train", *short), "error: runs/smoke/", said)
    sweep = script("train", "-m", *short, "seed=1,2")
    assert_refused(sweep, "error: ", said)


def test_tokens_that_a_full_disk_does_not_take_are_named(script, prepared, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert_refused(script("prepare", *prepared), "data/.text-byte-", ": No space left on device")


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_stdout_is_told(tmp_path, monkeypatch, arguments, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = [sys.executable, "-m", "gptmini", *arguments]
    with FULL.open("wb") as full:
        result = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, text=True, check=False
        )
    assert (result.returncode, result.stderr) == (2, "error: stdout: No space left on device\n")
