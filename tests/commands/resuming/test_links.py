"""A run folder that comes from a stranger leads nothing that is written out of itself."""

import os
import shutil
from pathlib import Path

import pytest
import yaml

from commands.resuming.readings import assert_refused
from run_folders import config_of, newest

pytestmark = pytest.mark.slow

NAMES = [
    "train.log",
    ".lock",
    "report.html",
    "events.out.tfevents.1.x",
    ".events.out.tfevents.1.x.1.tmp",
    ".config.yaml.1.tmp",
    "checkpoints/last.ckpt",
    "checkpoints/.last.ckpt.1.tmp",
    "plugins/more",
]


def make_way(path):
    """Remove what stands in the place of a file, and make the folder that the file is to lie in."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_link_in_a_run_folder_is_refused_and_nothing_is_written_through_it(
    complete, resume, tmp_path, name
):
    complete()
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    link = newest() / name
    make_way(link)
    link.symlink_to(mine)

    assert_refused(resume("trainer.max_steps=9"), f"{name} must be a file or folder itself")
    assert mine.read_text() == "mine"
    assert link.is_symlink()


def test_a_folder_of_checkpoints_that_is_a_link_is_refused(complete, resume, tmp_path):
    complete()
    checkpoints = newest() / "checkpoints"
    elsewhere = tmp_path / "elsewhere"
    shutil.move(checkpoints, elsewhere)
    checkpoints.symlink_to(elsewhere)
    before = {path.name: path.stat().st_mtime_ns for path in elsewhere.iterdir()}

    assert_refused(resume("trainer.max_steps=9"), "checkpoints must be a file or folder itself")
    assert {path.name: path.stat().st_mtime_ns for path in elsewhere.iterdir()} == before


@pytest.mark.parametrize("name", ["events.out.tfevents.1.x", "train.log", "checkpoints/more"])
def test_a_pipe_in_a_run_folder_is_refused_and_nobody_waits_for_it(complete, resume, name):
    complete()
    pipe = newest() / name
    make_way(pipe)
    os.mkfifo(pipe)
    assert_refused(resume("trainer.max_steps=9"), f"{name} must be a file or folder itself")


def test_a_report_waits_for_no_pipe(complete, script):
    complete()
    os.mkfifo(newest() / "events.out.tfevents.1.x")
    assert_refused(script("report", str(newest())), "must be a file of events")


def test_a_report_replaces_a_link_in_the_run_and_follows_one_that_is_named(
    complete, script, tmp_path
):
    complete()
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    report = newest() / "report.html"
    report.symlink_to(mine)

    assert script("report", str(newest())).code == 0
    assert mine.read_text() == "mine"
    assert not report.is_symlink()

    named = tmp_path / "named.html"
    named.symlink_to(mine)
    assert script("report", str(newest()), "--out", str(named)).code == 0
    assert named.is_symlink()
    assert mine.read_text().startswith("<!doctype html>")


def test_latest_follows_from_where_the_run_stands(complete, resume, tmp_path):
    complete()
    folder = newest()
    config = config_of(folder)
    config["runs_dir"] = str(tmp_path / "theirs")
    (folder / "config.yaml").write_text(yaml.safe_dump(config))

    result = resume("trainer.max_steps=9", run=folder)
    assert result.code == 0, result.err
    assert "tensorboard --logdir runs\n" in result.out
    assert newest() == folder
    assert not (tmp_path / "theirs").exists()


def test_a_run_that_was_moved_elsewhere_makes_no_latest(complete, resume, tmp_path):
    complete()
    moved = tmp_path / "moved" / "run"
    moved.parent.mkdir()
    shutil.move(newest(), moved)
    shutil.rmtree("runs")

    result = resume("trainer.max_steps=9", run=moved)
    assert result.code == 0, result.err
    assert sorted(path.name for path in Path().iterdir()) == ["data", "moved", "my.txt"]
    assert [path.name for path in moved.parent.iterdir()] == ["run"]
