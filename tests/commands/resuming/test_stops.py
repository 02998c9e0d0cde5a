"""A run that a signal or its time limit stops saves its step, says how to go on, and goes on as if never stopped."""

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from commands.resuming.kills import when
from commands.resuming.readings import assert_same, assert_whole
from gptmini.model.checkpoint import read_checkpoint
from run_folders import last, newest

pytestmark = pytest.mark.slow  # together they take minutes

SCRIPTS = Path(__file__).parent.parent.parent.parent / "scripts"


@pytest.fixture
def hang_up_is_heeded():
    """Give SIGHUP its default meaning, which it lacks where the tests were started by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("SIGTERM", 0),
        ("SIGTERM", 3),
        ("SIGTERM", 4),
        ("SIGTERM", 7),
        ("SIGINT", 5),
        ("SIGUSR1", 5),
        ("SIGUSR2", 5),
        ("SIGHUP", 5),
        ("time", 4),
    ],
)
@pytest.mark.usefixtures("hang_up_is_heeded")
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
        r"next     \S+ \S*scripts/train.py resume=(\S+)$",
        result.out,
        re.M,
    )
    assert last(newest())["global_step"] == step

    assert resume(run=said[1]).code == 0
    assert_same(newest(), reference)


def test_a_signal_ends_samples_between_two_tokens(begin):
    with when(2, lambda: signal.raise_signal(signal.SIGTERM), "on_validation_end"):
        began = time.monotonic()
        result = begin("callbacks.samples.max_new_tokens=100000000")

    # A hundred million tokens would take hours.
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


@pytest.mark.parametrize("second", ["at once", "while writing", "while flushing"])
def test_a_second_ctrl_c_ends_at_once_and_leaves_no_torn_file(straight, begin, resume, second):
    reference = straight()

    def interrupt(*descriptor):
        signal.raise_signal(signal.SIGINT)

    def write(checkpoint, file):
        file.write(b"the beginning")
        interrupt()

    with pytest.MonkeyPatch.context() as patch:

        def interrupt_twice():
            interrupt()
            if second == "at once":
                interrupt()
            elif second == "while writing":
                patch.setattr(torch, "save", write)
            else:
                patch.setattr(os, "fsync", interrupt)

        with when(5, interrupt_twice, "on_train_batch_end"):
            result = begin()

    assert result.code == 130
    said = r"^stopped  by .+ at step 5; \S+/last.ckpt is the newest checkpoint$"
    assert re.search(said, result.out, re.M)
    assert_whole(newest())

    assert resume().code == 0
    assert_same(newest(), reference)


def launch(*arguments):
    """A training process of its own that has begun to train."""
    command = [sys.executable, "scripts/train.py", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (line := process.stdout.readline()).startswith("step"):
        assert line, process.communicate(timeout=60)
    return process


def finish(process, *numbers):
    """Send signals to a process; its exit code and the rest of its output."""
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.001)
    out, err = process.communicate(timeout=60)
    assert err == ""
    return process.returncode, out


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
    arguments = [*short, "trainer.max_steps=1000000", "trainer.val_every_steps=1000000"]
    command = [sys.executable, str(SCRIPTS / "train.py"), *arguments]
    process, terminal = pty.fork()
    if process == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.execv(command[0], command)

    shown = b""
    while b"tokens/s" not in shown:
        shown += os.read(terminal, 2**16)
    os.close(terminal)
    _, status = os.waitpid(process, 0)

    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    log = (newest() / "train.log").read_text()
    step = int(re.search(r"^stopped  by SIGHUP at step (\d+); saved as ", log, re.M)[1])
    assert last(newest())["global_step"] == step > 0


@pytest.mark.slow
def test_real_signals_stop_a_real_process_and_the_printed_command_goes_on(script, short, tmp_path):
    (tmp_path / "scripts").symlink_to(SCRIPTS)
    arguments = [*short, "trainer.max_steps=1000000", "trainer.val_every_steps=1000000"]

    code, out = finish(launch(*arguments), signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    said = re.search(
        r"at step (\d+); saved as (\S+)\nnext     \S+ \S*scripts/train.py (resume=\S+)\n", out
    )
    assert int(said[1]) == read_checkpoint(Path(said[2]))["global_step"] > 0

    resume = shlex.split(said[3])
    code, out = finish(launch(*resume), signal.SIGINT, signal.SIGINT)
    assert code == 130
    assert_whole(newest())
