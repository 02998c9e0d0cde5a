"""What becomes of the files of a run that is resumed."""

import errno
import os

import pytest

from gptmini import runs
from gptmini.checkpoint.file import read_checkpoint, write_checkpoint


@pytest.fixture
def run(tmp_path):
    """A run folder whose best checkpoint is of step 1, previous of step 2 and last of step 3."""
    (tmp_path / "config.yaml").write_text("")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for step, name in enumerate(("best", "previous", "last"), 1):
        checkpoint = {"gptmini": {"format": 1}, "state_dict": {}, "global_step": step}
        write_checkpoint(checkpoint, folder / f"{name}.ckpt")
    return tmp_path


def steps(run):
    files = sorted((run / "checkpoints").iterdir())
    return {path.name: read_checkpoint(path)["global_step"] for path in files}


def no_room(*arguments, **more):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_checkpoint_that_a_run_goes_on_from_becomes_its_last(run):
    # The second time the two files are of one step, and nothing is left to set aside.
    for _ in range(2):
        runs.adopt(run / "checkpoints" / "best.ckpt", 1)

    expected = {"best": 1, "last": 1, "set-aside-last-3": 3, "set-aside-previous-2": 2}
    assert steps(run) == {f"{name}.ckpt": step for name, step in expected.items()}


def test_a_run_without_room_for_its_last_checkpoint_keeps_every_name(run, monkeypatch):
    before = steps(run)
    monkeypatch.setattr(os, "link", no_room)
    with pytest.raises(OSError, match="No space left on device"):
        runs.adopt(run / "checkpoints" / "best.ckpt", 1)
    assert steps(run) == before


def test_what_a_killed_process_had_half_written_is_removed_and_nothing_else(run):
    left_over = [
        ".config.yaml.0123456789abcdef.tmp",
        ".events.out.tfevents.1.host.2.3.0123456789abcdef.tmp",
        ".metrics.csv.0123456789abcdef.tmp",
        "checkpoints/.last.ckpt.0123456789abcdef.tmp",
    ]
    # A report takes no lock, so that its file may be of a process that still runs.
    kept = [".report.html.0123456789abcdef.tmp", "mine.tmp", "events.out.tfevents.1.host.2.3"]
    for name in (*left_over, *kept):
        (run / name).touch()
    (run / "checkpoints" / ".folder.tmp").mkdir()

    runs.remove_left_overs(run)
    assert [name for name in left_over if (run / name).exists()] == []
    assert [name for name in kept if not (run / name).exists()] == []
