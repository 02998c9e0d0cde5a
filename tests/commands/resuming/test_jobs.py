"""With resume=auto a job that is started again goes on with its run, and asks Slurm for more time."""

import os
import re
import signal
import subprocess
import sys

import pytest

from run_folders import last, newest

AUTO = ("resume=auto", "name=job")
AT_ONCE = "trainer.max_time=1e-3"  # stop after the first step


@pytest.fixture
def job(monkeypatch):
    """Number of a job of Slurm that this process is the one task of."""
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    return "77"


def test_a_job_that_is_started_again_goes_on_with_its_run(
    script, short, job, monkeypatch, tmp_path
):
    first = script("train", *short, *AUTO, AT_ONCE)
    assert "stopped  by the time limit at step 1; saved as" in first.out, first.err

    # The same command, and one with another time limit, which a resumed run takes.
    again = script("train", *short, *AUTO, AT_ONCE)
    assert "stopped  by the time limit at step 2; saved as" in again.out, again.err
    done = script("train", *short, *AUTO, "trainer.max_time=null")
    assert "\ndone     2 steps" in done.out, done.err
    assert last(newest())["global_step"] == 4

    # Of another job, it is another run; so is the same name without resume=auto.
    monkeypatch.setenv("SLURM_JOB_ID", "78")
    assert script("train", *short, *AUTO).code == 0
    assert script("train", *short, "name=job").code == 0
    runs = [path for path in (tmp_path / "runs" / "job").iterdir() if path.name != ".jobs"]
    assert len(runs) == 3


@pytest.mark.parametrize(
    ("begun_with", "typed", "message"),
    [
        ([], ["optimizer.lr=0.5"], r"has begun runs/job/\S+ without optimizer\.lr=0\.5"),
        (
            ["optimizer.lr=0.5"],
            [],
            r"has begun runs/job/\S+ with optimizer\.lr=0\.5, which is missing now",
        ),
        ([], ["-m", "seed=1,2"], "resume=auto goes on with one run, and -m asks for several"),
    ],
)
def test_a_job_cannot_change_the_past_of_its_run(script, short, job, begun_with, typed, message):
    assert script("train", *short, *AUTO, *begun_with).code == 0
    result = script("train", *short, *AUTO, *typed)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert re.search(message, result.err), result.err


def test_without_a_job_there_is_no_run_to_go_on_with(script, short, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    result = script("train", *short, *AUTO)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "resume=auto needs a job that is started again under its name" in result.err


def test_a_damaged_note_on_a_job_is_refused(script, short, job, tmp_path):
    assert script("train", *short, *AUTO).code == 0
    note = tmp_path / "runs" / "job" / ".jobs" / "slurm-77.json"
    for damaged in ("", "[]", '{"job": "slurm-78", "run": "x", "overrides": []}'):
        note.write_text(damaged)
        result = script("train", *short, *AUTO)
        assert (result.code, result.err.count("\n")) == (2, 1)
        assert f"{note.relative_to(tmp_path)} must" in result.err


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the scontrol of this test is a shell script")
def test_slurms_signal_saves_the_run_and_puts_the_job_into_its_queue(script, short, job, tmp_path):
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    program.chmod(0o755)

    endless = ("trainer.max_steps=100000", "trainer.val_every_steps=100000")
    command = [sys.executable, "-m", "gptmini", "train", *short, *AUTO, *endless]
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    options = {"stdout": subprocess.PIPE, "text": True, "cwd": tmp_path, "env": environment}
    run = subprocess.Popen(command, **options)
    for line in run.stdout:
        if line.startswith("step 1/"):
            break
    run.send_signal(signal.SIGUSR1)
    printed = run.communicate(timeout=60)[0]
    assert run.returncode == 128 + signal.SIGUSR1
    assert "stopped  by SIGUSR1 at step" in printed
    assert "requeue  job 77 is in the queue again, and goes on with this run" in printed
    assert (tmp_path / "asked").read_text() == "requeue 77\n"
