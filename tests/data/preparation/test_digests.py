"""Digests of files: read again when a file has changed, and only then."""

import hashlib
import os
import time

import pytest

from gptmini.data.preparation import digests
from gptmini.data.preparation.digests import Digests, sha256_of
from gptmini.user_error import UserError


def aged(path, text, *, seconds=60):
    """A file that was last changed a while ago."""
    path.write_text(text)
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


@pytest.fixture
def settled(monkeypatch):
    """Take every file for one that was last changed long ago; no program can set that time."""
    monkeypatch.setattr(digests, "SETTLING", -3600)


@pytest.fixture
def n_read(monkeypatch):
    """The files that are read."""
    read = []

    def sha256_and_count(path):
        read.append(path)
        return sha256_of(path)

    monkeypatch.setattr(digests, "sha256_of", sha256_and_count)
    return read


def test_a_digest_is_kept_until_the_file_changes(tmp_path, n_read, settled):
    file = aged(tmp_path / "a.txt", "some text")
    for _ in range(3):
        known = Digests(tmp_path / "cache.json")
        assert known.digest_of(file) == hashlib.sha256(b"some text").hexdigest()
        known.save()
    assert n_read == [file]

    aged(file, "SOME TEXT", seconds=50)
    assert (
        Digests(tmp_path / "cache.json").digest_of(file) == hashlib.sha256(b"SOME TEXT").hexdigest()
    )

    # The same size and time, but another file.
    other = aged(tmp_path / "b.txt", "some tex2")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.replace(file)
    assert (
        Digests(tmp_path / "cache.json").digest_of(file) == hashlib.sha256(b"some tex2").hexdigest()
    )


def test_a_file_that_was_just_written_is_read_again(tmp_path, n_read):
    file = tmp_path / "a.txt"
    file.write_text("some text")
    for _ in range(2):
        known = Digests(tmp_path / "cache.json")
        known.digest_of(file)
        known.save()
    assert n_read == [file, file]
    assert not (tmp_path / "cache.json").exists()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 5}', '{"a": []}', '{"a": [1, 2]}', "\0"])
def test_a_cache_that_cannot_be_read_is_made_anew(tmp_path, settled, content):
    (tmp_path / "cache.json").write_text(content)
    file = aged(tmp_path / "a.txt", "some text")
    known = Digests(tmp_path / "cache.json")
    assert known.digest_of(file) == hashlib.sha256(b"some text").hexdigest()
    known.save()


def test_a_file_that_changed_is_noticed(tmp_path):
    file = aged(tmp_path / "a.txt", "some text")
    known = Digests(tmp_path / "cache.json")
    known.digest_of(file)
    known.check_unchanged()
    file.write_text("other")
    with pytest.raises(UserError, match=r"a\.txt must stay as it is while it is read, and it was"):
        known.check_unchanged()
    file.unlink()
    with pytest.raises(UserError, match=r"a\.txt must stay as it is"):
        known.check_unchanged()


def test_a_mark_of_utf8_is_no_part_of_the_digest(tmp_path):
    (tmp_path / "a.txt").write_bytes("Gr\u00f6\u00dfe".encode("utf-8-sig"))
    assert sha256_of(tmp_path / "a.txt") == hashlib.sha256("Gr\u00f6\u00dfe".encode()).hexdigest()


def test_a_change_whose_time_is_set_back_is_noticed(tmp_path, settled):
    file = aged(tmp_path / "a.txt", "some text")
    known = Digests(tmp_path / "cache.json")
    known.digest_of(file)
    known.save()
    before = file.stat()
    time.sleep(0.02)  # the file system's clock goes on in steps of a few milliseconds
    file.write_text("SOME TEXT")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    digest = Digests(tmp_path / "cache.json").digest_of(file)
    assert digest == hashlib.sha256(b"SOME TEXT").hexdigest()


def test_a_folder_that_cannot_be_written_keeps_no_digests(tmp_path, settled):
    file = aged(tmp_path / "a.txt", "some text")
    known = Digests(tmp_path / "gone" / "cache.json")
    known.digest_of(file)
    known.save()
    assert not (tmp_path / "gone").exists()
