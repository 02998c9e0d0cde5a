"""A run stopped by a signal or its time limit saves its step, prints how to resume, and resumes exactly."""

import os
import pty
import re
import signal
import time

import pytest
import torch

import programs
from commands.resuming.kills import when
from commands.resuming.readings import assert_same, assert_whole
from gptmini.training.devices.requeueing import requeue
from run_folders import last, newest

ENDLESS = ("trainer.max_steps=1000000", "trainer.val_every_steps=1000000")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("SIGTERM", 0),
        ("SIGUSR1", 3),  # this step is saved anyway
        ("SIGINT", 7),  # the last step
        ("time", 4),
    ],
)
def test_a_stop_saves_its_step_says_how_to_go_on_and_changes_nothing(
    straight, begin, resume, monkeypatch, name, step
):
    reference = straight("trainer.max_time=05:00")
    now = time.monotonic

    def stop():
        if name == "time":
            monkeypatch.setattr(time, "monotonic", lambda: now() + 301)
        else:
            signal.raise_signal(signal.Signals[name])

    with when(step, stop, "on_train_batch_end" if step else "on_train_start"):
        result = begin("trainer.max_time=05:00")

    if name == "time":
        reason = "the time limit"
        assert result.code == 0
    else:
        reason = name
        assert result.code == 128 + signal.Signals[name]
    said = re.search(
        rf"^stopped  by {reason} at step {step}; saved as \S+/last.ckpt\n"
        r"next     gptmini train resume=(\S+)$",
        result.out,
        re.M,
    )
    assert last(newest())["global_step"] == step

    assert resume(run=said[1]).code == 0
    assert_same(newest(), reference, also_validated=4 if name == "time" else None)


def test_a_signal_ends_samples_between_two_tokens(begin):
    with when(2, lambda: signal.raise_signal(signal.SIGTERM), "on_validation_end"):
        began = time.monotonic()
        result = begin("callbacks.samples.max_new_tokens=100000000")

    # Generating a hundred million tokens would take hours.
    assert time.monotonic() - began < 60
    assert result.code == 128 + signal.SIGTERM
    assert re.search(r"^stopped  by SIGTERM at step 3; saved as ", result.out, re.M)
    assert_whole(newest())


def test_a_handler_that_was_there_before_is_called_once_the_run_is_saved(begin):
    calls = []

    def handler(number, frame):
        calls.append((number, last(newest())["global_step"]))

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        with when(5, lambda: signal.raise_signal(signal.SIGUSR2), "on_train_batch_end"):
            result = begin()
        handler_after = signal.getsignal(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)

    assert result.code == 128 + signal.SIGUSR2
    assert calls == [(signal.SIGUSR2, 5)]
    assert handler_after is handler


@pytest.mark.parametrize("while_writing", [False, True])
def test_a_second_ctrl_c_ends_at_once_and_leaves_no_torn_file(
    straight, begin, resume, while_writing
):
    reference = straight()

    def interrupt():
        signal.raise_signal(signal.SIGINT)

    def write(checkpoint, file):
        file.write(b"the beginning")
        interrupt()

    with pytest.MonkeyPatch.context() as patch:

        def interrupt_twice():
            interrupt()
            if while_writing:
                patch.setattr(torch, "save", write)
            else:
                interrupt()

        with when(5, interrupt_twice, "on_train_batch_end"):
            result = begin()

    assert result.code == 130
    said = r"^stopped  by SIGINT at step 5; not saved"
    assert re.search(said, result.out, re.M)
    assert_whole(newest())

    assert resume().code == 0
    assert_same(newest(), reference)


def test_a_run_outlives_its_terminal_where_hanging_up_is_ignored(begin):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with when(5, lambda: signal.raise_signal(signal.SIGHUP), "on_train_batch_end"):
            result = begin()
    finally:
        signal.signal(signal.SIGHUP, before)

    assert result.code == 0
    assert last(newest())["global_step"] == 7


def test_a_run_whose_terminal_is_closed_is_saved(script, short):
    process, terminal = pty.fork()
    if process == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        programs.run(programs.gptmini, "train", *short, *ENDLESS)

    shown = b""
    while b"tokens/s" not in shown:
        shown += os.read(terminal, 2**16)
    os.close(terminal)
    _, status = os.waitpid(process, 0)

    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    log = (newest() / "train.log").read_text()
    step = int(re.search(r"^stopped  by SIGHUP at step (\d+); saved as ", log, re.M)[1])
    assert last(newest())["global_step"] == step > 0


@pytest.fixture
def start():
    """Start commands in separate processes, and wait until they train. The processes end with the test."""
    started = []

    def run(*arguments, **variables):
        process = programs.start("train", *arguments, variables=variables, text=True)
        started.append(process)
        while not (line := process.stdout.readline()).startswith("step"):
            assert line, process.communicate(timeout=60)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def finish(process, number):
    """Send a signal to a process; return its exit code and the rest of its output."""
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert err == ""
    return process.returncode, out


@pytest.mark.skipif(os.name != "posix", reason="the scontrol of this test is a shell script")
def test_slurms_signal_saves_and_requeues_and_the_same_command_goes_on(
    short, start, tmp_path, script
):
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    scontrol.chmod(0o755)
    job = {
        "SLURM_JOB_ID": "77",
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "1",
        "PATH": f"{scontrol.parent}:{os.environ['PATH']}",
    }
    command = (*short, *ENDLESS, "folder=runs/77", "trainer.requeue=true")

    code, out = finish(start(*command, **job), signal.SIGUSR1)
    assert code == 128 + signal.SIGUSR1
    step = int(re.search(r"^stopped  by SIGUSR1 at step (\d+); saved as runs/77/", out, re.M)[1])
    assert step == last(tmp_path / "runs" / "77")["global_step"]
    assert "requeue  job 77 requeued;" in out
    assert (tmp_path / "asked").read_text() == "requeue 77\n"

    # A job that its user cancels is not requeued.
    code, out = finish(start(*command, **job), signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert step < last(tmp_path / "runs" / "77")["global_step"]
    assert "requeue  job 77 not requeued: stopped by SIGTERM" in out
    assert (tmp_path / "asked").read_text() == "requeue 77\n"


def test_a_missing_scontrol_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = requeue("SIGUSR1")
    assert reason.startswith("job 7 not requeued: ")
    assert "scontrol" in reason
