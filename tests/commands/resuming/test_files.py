"""A run resumes from any of its checkpoints, skips damaged ones, and survives a full disk."""

import errno
import os
import re

import pytest
import torch
from tensorboard.summary.writer import record_writer

import gptmini
from commands.resuming.kills import EACH, killed, when
from commands.resuming.readings import (
    assert_same,
    curves,
    rows,
    snapshot,
    steps,
)
from gptmini.training.callbacks.checkpoints import AtomicCheckpointIO
from gptmini.training.callbacks.samples import Samples
from run_folders import config_of, last, newest

# After five steps, last has step 5 and best step 4; there is no previous.
RARE = ("trainer.val_every_steps=4", "callbacks.checkpoints.every_steps=5")


@pytest.mark.parametrize(
    ("name", "aside"), [("previous", ["last"]), ("best", ["last", "previous"])]
)
def test_a_run_goes_back_to_any_of_its_files_and_later_ones_are_set_aside(
    straight, interrupted, resume, name, aside
):
    reference = straight(*EACH)
    interrupted(*EACH)
    folder = newest()
    before = {file: last(folder, file)["global_step"] for file in ("last", "previous", "best")}
    assert before == {"last": 5, "previous": 4, "best": 3}

    result = resume(run=f"runs/latest/checkpoints/{name}.ckpt")
    assert_same(folder, reference)
    expected = {f"set-aside-{file}-{before[file]}.ckpt" for file in aside}
    assert {path.name for path in folder.glob("*/set-aside*")} == expected
    said = r"^warning  renamed .* to \S*/set-aside-(\w+)-\d+\.ckpt$"
    assert re.findall(said, result.out, re.M) == aside


def test_a_run_goes_on_from_a_file_that_was_set_aside_and_there_again_if_it_is_killed_at_once(
    straight, interrupted, resume
):
    reference = straight(*EACH)
    interrupted(*EACH)
    checkpoints = newest() / "checkpoints"
    assert resume(run=checkpoints / "best.ckpt").code == 0
    with killed(6, "on_train_batch_end"):
        resume(run=checkpoints / "set-aside-last-5.ckpt")

    assert "checkpoints/previous.ckpt, step 5 of 7" in resume().out
    assert_same(newest(), reference)


@pytest.mark.parametrize(
    ("often", "used"), [(EACH, "previous.ckpt, step 4 of 7"), (RARE, "best.ckpt, step 4 of 7")]
)
def test_a_damaged_last_is_named_and_the_newest_good_file_used(
    straight, interrupted, resume, often, used
):
    reference = straight(*often)
    interrupted(*often)
    path = newest() / "checkpoints" / "last.ckpt"
    os.truncate(path, path.stat().st_size // 2)

    result = resume()
    assert re.search(r"^warning  \S*/checkpoints/last\.ckpt is ", result.out, re.M)
    assert f"/checkpoints/{used}" in result.out
    assert_same(newest(), reference)


def test_when_all_are_damaged_nothing_is_written(interrupted, resume):
    interrupted(*EACH)
    for path in newest().glob("checkpoints/*.ckpt"):
        os.truncate(path, 99)
    before = snapshot(newest())

    said = ("cannot resume from any checkpoint: ", "last.ckpt", "previous.ckpt", "best.ckpt")
    resume().assert_refused(*said)
    assert snapshot(newest()) == before


@pytest.mark.parametrize("name", ["events.*", "metrics.jsonl"])
def test_curves_that_end_amid_a_line_or_an_event_are_made_good(straight, begin, resume, name):
    reference = straight()
    with killed(5, "on_train_batch_end", Samples):
        begin()

    # The truncated file has step 5, which is later than the latest checkpoint. A killed writer leaves a file too.
    (path,) = newest().glob(name)
    os.truncate(path, path.stat().st_size - 30)
    (newest() / ".metrics.jsonl.0123456789abcdef.tmp").touch()

    assert resume().code == 0
    assert_same(newest(), reference)
    assert list(newest().rglob("*.tmp")) == []


@pytest.fixture
def full_disk_at(monkeypatch):
    """Return a set of steps. Writing the checkpoint of such a step fails as on a full disk."""
    save = AtomicCheckpointIO.save_checkpoint
    failing = set()

    def half(checkpoint, file):
        file.write(b"the beginning")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        with pytest.MonkeyPatch.context() as patch:
            if checkpoint["global_step"] in failing:
                patch.setattr(torch, "save", half)
            save(self, checkpoint, path)

    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", save_checkpoint)
    return failing


def test_a_save_that_fails_is_said_and_training_goes_on(straight, begin, full_disk_at):
    reference = straight(*EACH)
    full_disk_at |= {4, 5}
    kept = []
    with when(5, lambda: kept.append(last(newest())["global_step"])):
        result = begin(*EACH)

    for step in (4, 5):
        failure = rf"last\.ckpt not saved at step {step}: No space left on device"
        assert re.search(rf"^{failure}; the previous checkpoint is kept$", result.out, re.M)
    assert kept == [3]
    assert_same(newest(), reference)


def test_a_last_save_that_fails_ends_the_run_in_one_line(straight, begin, resume, full_disk_at):
    reference = straight(*EACH)
    full_disk_at.add(7)
    result = begin(*EACH)
    assert result.code == 1
    assert re.fullmatch(r"error: [^\n]*No space left on device\n", result.err)
    assert last(newest())["global_step"] == 6

    full_disk_at.clear()
    assert resume().code == 0
    assert_same(newest(), reference)


def test_a_full_disk_costs_events_but_no_line_and_a_resume_writes_the_events_anew(begin, resume):
    def full(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        pytest.MonkeyPatch.context() as patch,
        when(3, lambda: patch.setattr(record_writer.RecordWriter, "write", full)),
    ):
        result = begin()
    assert len(re.findall("^events   .*: No space left on device$", result.out, re.MULTILINE)) == 1
    assert [step for step, _ in rows(newest())["train/loss"]] == [1, 2, 3, 4, 5, 6, 7]

    assert resume("trainer.max_steps=9").code == 0
    assert steps(newest(), "train/loss") == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    # The table of the configuration is logged again, because max_steps has changed.
    assert steps(newest(), "setup/config/text_summary") == [0, 7]
    assert steps(newest(), "setup/model/text_summary") == [0]
    logged = [step for tag, points in rows(newest()).items() for step, _ in points]
    assert logged.count(0) == 3


def keys(tree):
    """Yield every key of nested dicts, lists and tuples."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in entries:
        yield str(key)
        if isinstance(value, dict | list | tuple):
            yield from keys(value)


def test_files_hold_no_random_state_and_the_version_and_moments_by_the_names_of_the_weights(
    straight,
):
    folder = straight()
    found = {*keys(config_of(folder)), *curves(folder)}
    for name in ("last", "previous", "best"):
        found |= set(keys(last(folder, name)))
    assert {"optimizer_states", "exp_avg", "seed", "train/loss"} <= found
    assert [key for key in found if re.search("rng|random", key, re.I)] == []

    checkpoint = last(folder)
    assert checkpoint["gptmini"]["version"] == config_of(folder)["version"] == gptmini.__version__
    (optimizer,) = checkpoint["optimizer_states"]
    assert set(optimizer["state"]) == set(checkpoint["state_dict"])
    for name, moments in optimizer["state"].items():
        shapes = {tensor.shape for key, tensor in moments.items() if key != "step"}
        assert shapes == {checkpoint["state_dict"][name].shape}, name
