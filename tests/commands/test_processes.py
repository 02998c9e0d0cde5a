"""A run that goes on with another number of processes follows the same global batches to the same weights."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from run_folders import config_of, last, newest

AT_ONCE = "trainer.max_time=1e-3"  # stop after the first step


@pytest.mark.slow
def test_a_run_goes_on_with_more_processes_and_then_with_fewer(script, short, tmp_path):
    assert script("train", *short, "name=straight").code == 0
    expected = last(newest())

    program = Path(sys.executable).with_name("gptmini")
    if not program.exists():
        pytest.skip("the program gptmini is not beside this Python; pip install puts it there")

    def train(*arguments, devices):
        arguments = (*arguments, f"trainer.devices={devices}", "trainer.batch_size=auto")
        if devices == 1:
            return script("train", *arguments).out

        command = [str(program), "train", *arguments]
        options = {"cwd": tmp_path, "capture_output": True, "text": True}
        done = subprocess.run(command, timeout=120, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def batch_size():
        return config_of(newest())["trainer"]["batch_size"]

    stopped = train(*short, "name=moved", AT_ONCE, devices=1)
    assert "stopped  by the time limit at step 1; saved as" in stopped
    assert last(newest())["global_step"] == 1
    # trainer.batch_size=auto finds a device's whole share of the global batch of 4.
    assert batch_size() == 4

    with_more = train("resume=runs/latest", devices=2)
    assert "stopped  by the time limit at step 2; saved as" in with_more
    assert last(newest())["global_step"] == 2
    assert batch_size() == 2

    with_fewer = train("resume=runs/latest", "trainer.max_time=null", devices=1)
    assert "done     2 steps" in with_fewer

    got = last(newest())
    assert got["global_step"] == expected["global_step"] == 4
    for name, tensor in expected["state_dict"].items():
        torch.testing.assert_close(got["state_dict"][name], tensor, atol=1e-5, rtol=0)
    moments = got["optimizer_states"][0]["state"]
    for i, state in expected["optimizer_states"][0]["state"].items():
        for key, tensor in state.items():
            torch.testing.assert_close(moments[i][key], tensor, atol=1e-5, rtol=0)
