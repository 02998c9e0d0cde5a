"""A run without a checkpoint that is training says at which step its first checkpoint will be saved."""

import pytest
import yaml

from gptmini.durations import duration
from gptmini.runs import find_checkpoint, locked
from gptmini.runs.metrics import line_of
from gptmini.runs.run_folder import link_latest, write_config
from gptmini.user_error import UserError


def start_run(folder, step, *, val_every_steps=200, checkpoints=500, max_steps=700, **root):
    """Make the folder of a run that has logged a step."""
    if isinstance(checkpoints, int):
        checkpoints = {"every_steps": checkpoints}
    config = {
        "trainer": {"max_steps": max_steps, "val_every_steps": val_every_steps},
        "callbacks": {"checkpoints": checkpoints},
        **root,
    }
    (folder / "checkpoints").mkdir(parents=True)
    write_config(yaml.safe_dump(config), folder, [])
    lines = [{"step": 0, "time": 1.0, "setup/config": [["seed", "1"]]}]
    if step:
        lines.append({"step": step, "time": 2.0, "train/loss": 4.0})
    (folder / "metrics.jsonl").write_bytes(b"".join(map(line_of, lines)))


@pytest.mark.parametrize(
    ("step", "settings", "said"),
    [
        (0, {}, "step 200 (now at step 0)"),
        (90, {"checkpoints": 100}, "step 100 (now at step 90)"),
        # The loss of earlier validations was not finite, so they saved no checkpoint.
        (410, {}, "step 500 (now at step 410)"),
        (610, {"checkpoints": 5000}, "step 700 (now at step 610)"),
        # A quarter of the steps.
        (10, {"val_every_steps": "auto", "max_steps": 100}, "step 25 (now at step 10)"),
        (0, {"init_from": "gpt2"}, "step 0 (now at step 0)"),
        (10, {"checkpoints": None}, "callbacks.checkpoints is off"),
        (10, {"checkpoints": {"_target_": "my.Kept"}}, "callbacks.checkpoints is my.Kept"),
    ],
)
def test_a_run_in_training_names_the_step_of_its_first_checkpoint(tmp_path, step, settings, said):
    run = tmp_path / "runs" / "mine"
    start_run(run, step, **settings)
    link_latest(tmp_path / "runs", run)
    for path in (run, tmp_path / "runs" / "latest"):
        with locked(run), pytest.raises(UserError, match="has no checkpoint") as refused:
            find_checkpoint(path)
        assert said in str(refused.value)
    with pytest.raises(UserError, match=r"has no checkpoint .*train the run"):
        find_checkpoint(run)


def test_durations_read_as_people_say_them():
    assert [duration(s) for s in (4.4, 185, 3720)] == ["4 s", "3 min 05 s", "1 h 02 min"]
