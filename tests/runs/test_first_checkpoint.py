"""A run without a checkpoint that is training says when its first checkpoint will be saved."""

import time

import pytest
import yaml

from gptmini.durations import duration
from gptmini.runs import find_checkpoint, locked
from gptmini.runs.metrics import line_of
from gptmini.runs.run_folder import link_latest, write_config
from gptmini.user_error import UserError

NOW = 1_000_000.0


def start_run(folder, steps, *, val_every_steps=200, every_steps=500, max_steps=700, **root):
    """Make the folder of a run that has logged some steps. A step takes half a second, and the last step ended now."""
    checkpoints = None if every_steps is None else {"every_steps": every_steps}
    config = {
        "trainer": {"max_steps": max_steps, "val_every_steps": val_every_steps},
        "callbacks": {"checkpoints": checkpoints},
        **root,
    }
    (folder / "checkpoints").mkdir(parents=True)
    write_config(yaml.safe_dump(config), folder, [])
    last = max(steps, default=0)
    entries = [{"step": step, "time": NOW - (last - step) / 2, "train/loss": 4.0} for step in steps]
    described = {"step": 0, "time": NOW - 100, "setup/config": [["seed", "1"]]}
    lines = [described, *entries]
    (folder / "metrics.jsonl").write_bytes(b"".join(map(line_of, lines)))


@pytest.mark.parametrize(
    ("steps", "settings", "said"),
    [
        # 160 steps of half a second are left.
        ([1, 10, 20, 30, 40], {}, ["step 200", "step 40", "1 min 20 s left"]),
        ([1, 10, 190], {"every_steps": 100}, ["step 200", "5 s left"]),
        ([1, 10, 90], {"every_steps": 100}, ["step 100", "5 s left"]),
        # The loss of earlier validations was not finite, so they saved no checkpoint.
        ([1, 410], {}, ["step 500", "step 410", "45 s left"]),
        ([1, 610], {"every_steps": 5000}, ["step 700"]),
        # The validation of the last logged step runs now.
        ([1, 200], {}, ["step 200", "0 s left"]),
        # A quarter of the steps.
        ([1, 10], {"val_every_steps": "auto", "max_steps": 100}, ["step 25", "8 s left"]),
    ],
)
def test_the_first_checkpoint_has_its_step_and_its_time(
    tmp_path, monkeypatch, steps, settings, said
):
    monkeypatch.setattr(time, "time", lambda: NOW)
    run = tmp_path / "runs" / "mine"
    start_run(run, steps, **settings)
    link_latest(tmp_path / "runs", run)
    for path in (run, tmp_path / "runs" / "latest"):
        with locked(run), pytest.raises(UserError, match="has no checkpoint yet") as refused:
            find_checkpoint(path)
        assert all(text in str(refused.value) for text in said), refused.value


@pytest.mark.parametrize(
    ("steps", "root", "said"),
    [
        ([], {}, "step 200 (now at step 0)"),
        ([1], {}, "step 200 (now at step 1)"),
        ([], {"init_from": "gpt2"}, "step 0 (now at step 0)"),
        ([1], {"init_from": "gpt2"}, "step 200 (now at step 1)"),
    ],
)
def test_the_time_is_left_out_until_the_speed_is_known(tmp_path, steps, root, said):
    start_run(tmp_path / "run", steps, **root)
    with locked(tmp_path / "run"), pytest.raises(UserError) as refused:
        find_checkpoint(tmp_path / "run")
    assert said in str(refused.value)


def test_a_run_that_saves_no_checkpoint_names_the_key(tmp_path):
    start_run(tmp_path / "run", [1, 10], every_steps=None)
    with (
        locked(tmp_path / "run"),
        pytest.raises(UserError, match=r"callbacks\.checkpoints is off"),
    ):
        find_checkpoint(tmp_path / "run")


def test_a_run_that_saves_checkpoints_with_another_class_names_the_class(tmp_path):
    checkpoints = {"_target_": "lightning.pytorch.callbacks.ModelCheckpoint", "save_last": True}
    start_run(tmp_path / "run", [1, 10], callbacks={"checkpoints": checkpoints})
    with locked(tmp_path / "run"), pytest.raises(UserError) as refused:
        find_checkpoint(tmp_path / "run")
    assert "callbacks.checkpoints is lightning.pytorch.callbacks.ModelCheckpoint" in str(
        refused.value
    )


def test_a_run_that_is_not_training_will_not_save_a_checkpoint(tmp_path):
    start_run(tmp_path / "run", [1, 10])
    with pytest.raises(UserError, match=r"has no checkpoint .*train the run"):
        find_checkpoint(tmp_path / "run")


def test_durations_read_as_people_say_them():
    assert [duration(s) for s in (4.4, 185, 3720)] == ["4 s", "3 min 05 s", "1 h 02 min"]
