"""Resuming a run sets aside, removes or keeps the files in its folder."""

import pytest

from gptmini.checkpoint.file import read_checkpoint, write_checkpoint
from gptmini.runs.find import checkpoints_in
from gptmini.runs.resume import make_latest, remove_leftovers


@pytest.fixture
def run(tmp_path):
    """Make a run folder with best.ckpt of step 1, previous.ckpt of step 2 and last.ckpt of step 3."""
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


def test_a_damaged_checkpoint_is_set_aside(run):
    last = run / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:-99])
    (aside,) = make_latest(run / "checkpoints" / "previous.ckpt", 2, run)
    assert aside.name == "set-aside-last-inf.ckpt"
    assert not last.exists()


def test_a_file_of_another_name_stays_and_a_copy_becomes_the_newest(run):
    checkpoints = run / "checkpoints"
    (checkpoints / "best.ckpt").rename(checkpoints / "mine.ckpt")
    for _ in range(2):
        make_latest(checkpoints / "mine.ckpt", 1, run)

    expected = {"mine": 1, "previous": 1, "set-aside-last-3": 3, "set-aside-previous-2": 2}
    assert steps(run) == {f"{name}.ckpt": step for name, step in expected.items()}
    assert checkpoints_in(run) == [checkpoints / "previous.ckpt"]


def test_what_a_killed_process_had_half_written_is_removed_and_nothing_else(run):
    left_over = [
        ".config.yaml.0123456789abcdef.tmp",
        ".metrics.jsonl.0123456789abcdef.tmp",
        ".state.0123456789abcdef.tmp",
        "checkpoints/.last.ckpt.0123456789abcdef.tmp",
    ]
    # A report takes no lock, so its temporary file may belong to a process that is still running.
    kept = [".report.html.0123456789abcdef.tmp", "mine.tmp", "events.out.tfevents.1.host.2.3"]
    for name in (*left_over, *kept):
        (run / name).touch()

    remove_leftovers(run)
    assert [name for name in left_over if (run / name).exists()] == []
    assert [name for name in kept if not (run / name).exists()] == []
