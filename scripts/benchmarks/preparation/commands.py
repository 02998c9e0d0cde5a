"""Commands and programs of peers, timed as a whole, with the most memory that the system gave a command."""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gptmini.user_error import UserError

from .texts import SEPARATOR

# Runs a command, and prints its seconds and the most kilobytes that it held. The system counts for a command what the
# process that starts it holds at that moment, so a process that imports nearly nothing has to start it.
LAUNCHER = """
import os, subprocess, sys, time
began = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(time.perf_counter() - began, usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status) != 0)
"""


class Run(NamedTuple):
    """A command that has ended."""

    seconds: float
    megabytes: float  # the most memory that it held at once


def run(*command: str) -> Run:
    """Run a command; UserError if it fails."""
    launched = subprocess.run(
        [sys.executable, "-S", "-c", LAUNCHER, *command],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if launched.returncode:
        raise UserError(f"{' '.join(command)} failed")
    seconds, kilobytes = launched.stdout.split()
    return Run(float(seconds), int(kilobytes) / 1024)


def prepare(path: Path, *overrides: str) -> Run:
    """Prepare a text into a folder that is deleted."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        options = [f"data.path={path}", f"data_dir={folder}", *overrides]
        if path.suffix == ".txt":
            options.append(f"data.separator='{SEPARATOR}'")
        return run(sys.executable, "-m", "gptmini", "prepare", "data=text", *options)


def peer(arguments: argparse.Namespace, code: str, *options: str) -> float:
    """Seconds that a program of a peer measures of itself and prints in its last line."""
    command = [arguments.peer_python, "-c", code, *options]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode:
        raise UserError(f"the peer failed: {result.stderr}")
    return float(result.stdout.split()[-1])


def compare(turns: int, ours: Callable[[], float], theirs: Callable[[], float], name: str) -> None:
    """Print how many times as fast as theirs ours is: the median of the turns, and their range."""
    ratios = []
    for _ in range(turns):
        own = ours()
        other = theirs()
        ratios.append(other / own)
        print(f"  gptmini {own:6.1f} s, {name} {other:6.1f} s: {other / own:.2f}", flush=True)
    print(f"  median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")
