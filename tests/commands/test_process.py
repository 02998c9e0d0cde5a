"""A rank that gptmini launched does not outlive its launcher."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from gptmini.system.process import LAUNCHER, SHUTDOWN_TIMEOUT
from toys import lines

# Start a rank with the program in the first argument, print its process id, and wait.
PARENT = f"""
import os, subprocess, sys
environment = dict(os.environ)
if sys.argv[2] == "gptmini":
    environment["{LAUNCHER}"] = str(os.getpid())
rank = subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=environment)
print(rank.pid, flush=True)
rank.wait()
"""
BEGINNING = """
import os, signal, subprocess, time
from gptmini.system.process import watch_launcher
watch_launcher()
"""
# Ranks print a line when they reach the tested state.
IMPORTING = f"{BEGINNING}print('there', flush=True)\ntime.sleep(600)"
TRAINING = f"""{BEGINNING}
asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
print('there', flush=True)
while not asked:
    time.sleep(0.01)
print('saved', flush=True)
"""
WAITING_IN_VAIN = f"""{BEGINNING}
signal.signal(signal.SIGTERM, lambda number, frame: print('asked', flush=True))
print('there', flush=True)
while True:
    time.sleep(600)
"""
INHERITED = f"{BEGINNING}print(subprocess.getoutput('echo there ${LAUNCHER}'), flush=True)"


@pytest.fixture
def orphaned():
    """Kill the launcher of a rank, wait until the rank and its pipe are gone, and return what the rank printed."""
    started = []

    def run(rank, launcher="gptmini", seconds=20):
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, rank, launcher],
            env=os.environ | {SHUTDOWN_TIMEOUT: "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(int(parent.stdout.readline()))
        assert parent.stdout.readline() == "there\n"
        parent.kill()
        parent.wait()
        return parent.communicate(timeout=seconds)[0]

    yield run
    for process in started:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@pytest.mark.slow
def test_a_program_without_its_streams_ends_as_with_them(tmp_path):
    command = f"{sys.executable} -m gptmini"
    (tmp_path / "my.txt").write_text(lines(200))
    train = "train experiment=smoke data=text data.path=my.txt folder=run callbacks.pictures=null"
    typed = f"{command} {train} && {command} tokens run abc && {command} chat run --raw"
    ended = subprocess.run(["sh", "-c", f"exec <&- >&- 2>&-; {typed}"], cwd=tmp_path)
    assert ended.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "printed"),
    [(IMPORTING, ""), (TRAINING, "saved\n"), (WAITING_IN_VAIN, "asked\n")],
)
def test_a_rank_whose_launcher_is_killed_ends_wherever_it_is(orphaned, rank, printed):
    assert orphaned(rank) == printed


@pytest.mark.slow
def test_a_rank_of_another_launcher_stays(orphaned):
    with pytest.raises(subprocess.TimeoutExpired):
        orphaned(IMPORTING, launcher="torchrun", seconds=3)


def test_a_launcher_that_is_gone_before_its_rank_looks_is_noticed():
    began = time.monotonic()
    # No process has this id, so the parent has another.
    variables = {LAUNCHER: "0", SHUTDOWN_TIMEOUT: "1"}
    rank = subprocess.run([sys.executable, "-c", IMPORTING], env=os.environ | variables)
    assert rank.returncode == -signal.SIGTERM
    assert time.monotonic() - began < 60


def test_what_a_rank_starts_is_no_rank(orphaned):
    assert orphaned(INHERITED) == ""


def test_the_exit_handler_of_another_tool_runs():
    program = (
        "import atexit, sys; atexit.register(print, 'ended'); from gptmini.__main__ import main; "
        "sys.argv = ['gptmini', '--version']; main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[1:] == ["ended"]
