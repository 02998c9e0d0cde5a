"""Runs that are begun and resumed in this process."""

import shutil

import pytest
from tensorboard.summary.writer import event_file_writer

from commands.resuming.kills import LONG
from run_folders import newest


@pytest.fixture(autouse=True)
def _event_files_are_named_in_their_order(monkeypatch):
    """Files of one process and second are told apart by a number, which TensorBoard sorts as text: 10 before 9."""
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(100))


@pytest.fixture
def begin(script, short):
    return lambda *overrides: script("train", *short, *LONG, *overrides)


@pytest.fixture
def resume(script):
    return lambda *overrides, run="runs/latest": script("train", f"resume={run}", *overrides)


STRAIGHT = {}  # folders of uninterrupted runs, by their overrides


@pytest.fixture
def straight(begin, tmp_path_factory):
    def folder(*overrides):
        if overrides not in STRAIGHT:
            assert begin(*overrides).code == 0
            STRAIGHT[overrides] = shutil.copytree(newest(), tmp_path_factory.mktemp("straight") / "run")
        return STRAIGHT[overrides]

    return folder
