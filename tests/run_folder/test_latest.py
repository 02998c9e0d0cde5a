"""runs/latest leads to the newest run, with links and without."""

import errno
import os
from pathlib import Path

import pytest

from gptmini.run_folder import find_checkpoint, find_run, link_latest, new_run_folder
from gptmini.run_folder.latest import LINKED, POINTER
from gptmini.user_error import UserError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def begin(name):
    """A run with one checkpoint."""
    folder = new_run_folder("runs", name, "seed: 1\n")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "last.ckpt").write_text(name)
    return folder


def refuse(*arguments, **more):
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.fixture
def linkless(monkeypatch):
    monkeypatch.setattr(os, "symlink", refuse)


def latest_items():
    return sorted(path.name for path in Path("runs/latest").iterdir())


def test_without_symbolic_links_a_file_names_the_newest_run(linkless):
    for name in ("a", "b"):
        folder = begin(name)
        last = folder / "checkpoints" / "last.ckpt"
        assert latest_items() == [POINTER]
        assert Path("runs/latest", POINTER).read_text() == f"{name}/{folder.name}\n"

        for given in (Path("runs/latest"), Path("runs/latest").absolute(), "runs/latest/"):
            assert find_run(given) == folder
            assert find_checkpoint(given) == last
        assert find_checkpoint("runs/latest/checkpoints/last.ckpt") == last
        assert find_run("runs/latest/checkpoints/last.ckpt") == folder


def test_the_file_is_followed_from_inside_latest(linkless, monkeypatch):
    folder = begin("a").absolute()
    monkeypatch.chdir("runs/latest")
    assert find_run(".") == folder
    assert find_checkpoint("checkpoints/last.ckpt") == folder / "checkpoints" / "last.ckpt"


def test_a_file_of_this_name_elsewhere_leads_nowhere(linkless):
    begin("a")
    folder = begin("b")
    (folder / POINTER).write_text(f"a/{folder.name}\n")
    assert find_run(folder) == folder


def test_where_links_can_be_made_again_they_take_the_place_of_the_file(monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "symlink", refuse)
        begin("a")
    folder = begin("b")
    assert latest_items() == sorted(LINKED)
    assert find_run("runs/latest") == folder


def test_where_links_can_be_made_no_more_the_file_counts(monkeypatch):
    begin("a")
    monkeypatch.setattr(os, "symlink", refuse)
    folder = begin("b")
    assert find_run("runs/latest") == folder
    assert find_checkpoint("runs/latest") == folder / "checkpoints" / "last.ckpt"


FOREIGN = [
    b"../mine/run\n",
    b"../../etc\n",
    b"/etc/passwd\n",
    b"a\n",
    b"a/b/c\n",
    b"./a\n",
    b"a/..\n",
    b"a\\b/c\n",
    b"C:/a\n",
    b"",
    b"\xff/a",
    b"a/" + b"b" * 10_000,
]


@pytest.mark.parametrize("content", FOREIGN)
def test_a_file_that_names_no_run_beside_it_is_refused_and_kept(linkless, content):
    begin("a")
    pointer = Path("runs/latest", POINTER)
    pointer.write_bytes(content)

    for find in (find_run, find_checkpoint):
        with pytest.raises(UserError, match=r"run\.txt must name a run in .+ as NAME/TIME"):
            find("runs/latest")
    with pytest.raises(UserError, match="must be absent or a folder"):
        begin("b")
    assert pointer.read_bytes() == content
    assert not Path("runs/b").exists()


def test_a_file_leads_through_no_link_out_of_the_folder_of_runs(tmp_path):
    mine = tmp_path / "mine" / "run"
    mine.mkdir(parents=True)
    (mine / "config.yaml").write_text("")
    Path("runs/latest").mkdir(parents=True)
    Path("runs/theirs").symlink_to(mine.parent)
    Path("runs/latest", POINTER).write_text("theirs/run\n")
    with pytest.raises(UserError, match=r"run\.txt must name a run in"):
        find_run("runs/latest")


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_pipe_or_a_link_in_the_place_of_the_file_is_refused(kind, tmp_path):
    Path("runs/latest").mkdir(parents=True)
    (tmp_path / "mine").write_text("a/b\n")
    pointer = Path("runs/latest", POINTER)
    if kind == "pipe":
        os.mkfifo(pointer)
    else:
        pointer.symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match=r"run\.txt must name a run in"):
        find_run("runs/latest")
    with pytest.raises(UserError, match="must be absent or a folder"):
        link_latest("runs", Path("runs/a/b"))
