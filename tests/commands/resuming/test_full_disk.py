"""A disk that is full or read-only costs a run no file that it had, and is told in one line."""

import errno
import os
import re
import resource
from pathlib import Path

import pytest
import torch
from tensorboard.summary.writer import record_writer

from commands.resuming.kills import EACH, when
from commands.resuming.readings import (
    assert_refused,
    assert_same,
    assert_whole,
    rows,
    snapshot,
    steps,
)
from gptmini.training.checkpoints import AtomicCheckpointIO
from gptmini.training.monitoring.scalars import Scalars
from run_folders import last, newest

pytestmark = pytest.mark.slow  # together they take minutes


def full(*arguments, **more):
    """Fail as a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def half(checkpoint, file):
    file.write(b"the beginning")
    full()


FAULTS = {
    "opened": (Path, "open", full),
    "written": (torch, "save", half),
    "flushed": (os, "fsync", full),
    "renamed": (Path, "replace", full),
}


@pytest.fixture
def faulty(monkeypatch):
    """Let a save fail in one of its parts if fails(step, name). Returns last.ckpt as it is before each failing save."""

    def arm(part, fails):
        save = AtomicCheckpointIO.save_checkpoint
        seen = []

        def failing(self, checkpoint, path, storage_options=None):
            with pytest.MonkeyPatch.context() as patch:
                if fails(checkpoint["global_step"], Path(path).stem):
                    seen.append((newest() / "checkpoints" / "last.ckpt").read_bytes())
                    patch.setattr(*FAULTS[part])
                save(self, checkpoint, path)

        monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", failing)
        return seen

    return arm


@pytest.mark.parametrize("part", FAULTS)
def test_a_save_that_fails_is_said_leaves_the_old_file_and_training_goes_on(
    straight, begin, faulty, part
):
    reference = straight(*EACH)
    seen = faulty(part, lambda step, name: step in (4, 5))
    with when(5, lambda: seen.append((newest() / "checkpoints" / "last.ckpt").read_bytes())):
        result = begin(*EACH)

    assert result.code == 0
    for step in (4, 5):
        failure = rf"last\.ckpt not saved at step {step}: No space left on device"
        assert re.search(rf"^{failure}; the checkpoint before it is kept$", result.out, re.M)
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert_whole(newest())
    assert_same(newest(), reference)


@pytest.mark.parametrize("part", FAULTS)
def test_a_last_save_that_fails_ends_in_one_line_with_the_earlier_file_intact(
    straight, begin, resume, faulty, part
):
    reference = straight(*EACH)
    room = []
    seen = faulty(part, lambda step, name: step == 7 and not room)

    assert_refused(begin(*EACH), "No space left on device", code=1)
    assert last(newest())["global_step"] == 6
    assert (newest() / "checkpoints" / "last.ckpt").read_bytes() == seen[0]
    assert_whole(newest())

    room.append("again")
    assert resume().code == 0
    assert_same(newest(), reference)


def test_a_best_that_could_not_be_saved_is_not_called_a_divergence(begin, faulty):
    faulty("written", lambda step, name: name == "best" and step > 2)
    result = begin("callbacks.checkpoints.every_steps=2", "trainer.val_every_steps=7")
    assert "best.ckpt not saved at step 7: No space left on device" in result.out
    assert "diverged" not in result.out


def test_a_checkpoint_larger_than_the_system_allows_is_said(begin):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The limit is between the size of the tokens and that of a checkpoint, which is 170 kB.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        result = begin()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert_refused(result, "last.ckpt: File too large")
    for name, step in (("best", 2), ("last", 3), ("best", 4), ("last", 6), ("last", 7)):
        said = f"{name}.ckpt not saved at step {step}: File too large; nothing is saved yet\n"
        assert said in result.out
    assert list((newest() / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("begins", [0, 3])  # the first step that TensorBoard's file does not take
def test_a_full_disk_costs_events_but_no_line_and_a_resume_writes_the_events_anew(
    begin, resume, monkeypatch, begins
):
    write = record_writer.RecordWriter.write
    now = {"step": 0}
    began = Scalars.on_train_batch_start

    def step(self, trainer, *rest):
        now["step"] = trainer.global_step
        began(self, trainer, *rest)

    def guarded(self, data):
        if now["step"] >= begins:
            full()
        write(self, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scalars, "on_train_batch_start", step)
        patch.setattr(record_writer.RecordWriter, "write", guarded)
        result = begin()
    assert result.code == 0, result.err
    said = "events   no longer written, until the run is resumed: No space left on device\n"
    assert result.out.count(said) == 1
    assert [step for step, _ in rows(newest())["train/loss"]] == [1, 2, 3, 4, 5, 6, 7]

    assert resume("trainer.max_steps=9").code == 0
    assert steps(newest(), "train/loss") == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert steps(newest(), "setup/config/text_summary") == [0]


@pytest.mark.parametrize(("owner", "name"), [(os, "open"), (Path, "write_text"), (Path, "open")])
def test_a_run_folder_that_cannot_be_written_is_refused_in_one_line(
    interrupted, resume, owner, name
):
    interrupted()
    folder = newest()
    before = snapshot(folder)
    call = getattr(owner, name)

    # Permissions would not do: root may write whatever they say.
    def guarded(path, *rest, **more):
        reads = name != "write_text" and (not rest or rest[0] in ("r", "rb", os.O_RDONLY))
        if reads or not Path(path).absolute().is_relative_to(folder):
            return call(path, *rest, **more)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, guarded)
        assert_refused(resume(), str(folder.relative_to(Path.cwd())), "Read-only file system")

    assert snapshot(folder) == before


@pytest.mark.parametrize("part", ["curves", "checkpoints"])
def test_a_resume_that_cannot_take_back_what_is_later_changes_nothing(
    interrupted, resume, monkeypatch, part
):
    interrupted(*EACH)
    before = snapshot(newest())
    replace = Path.replace

    def replace_no_checkpoint(path, to):
        if path.suffix == ".ckpt":
            full()
        return replace(path, to)

    if part == "curves":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(Path, "replace", replace_no_checkpoint)

    assert_refused(
        resume(run="runs/latest/checkpoints/best.ckpt"), "No space left on device", code=1
    )
    assert snapshot(newest()) == before
