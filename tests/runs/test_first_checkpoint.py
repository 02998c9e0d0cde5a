"""A run without a checkpoint that is training says when it will save one."""

import pytest

from gptmini.console.numbers import duration
from gptmini.runs import find_checkpoint
from gptmini.runs.run_folder import link_latest, locked, write_config
from gptmini.system.errors import UserError


def test_a_run_in_training_says_when_it_saves_its_first_checkpoint(tmp_path):
    run = tmp_path / "runs" / "mine"
    (run / "checkpoints").mkdir(parents=True)
    write_config("seed: 1", run, [])
    link_latest(tmp_path / "runs", run)
    for path in (run, tmp_path / "runs" / "latest"):
        with locked(run), pytest.raises(UserError, match=r"no checkpoint yet.*first validation"):
            find_checkpoint(path)
    with pytest.raises(UserError, match=r"has no checkpoints/best.ckpt .*train the run"):
        find_checkpoint(run)


def test_durations_read_as_people_say_them():
    assert [duration(s) for s in (4.4, 185, 3720)] == ["4 s", "3 min 05 s", "1 h 02 min"]
