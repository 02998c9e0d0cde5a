"""What watching costs: the share of a run that its scalars, samples and pictures take, and a run without them.

Runs with and without take turns. The shares are measured inside the runs with them, hook by hook, with the events that
each hook writes. On a GPU each hook first waits until the device has finished its work, so that no hook pays for
another's. The part start measures how soon a command answers.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import lightning as L

from gptmini.commands.fitting import log_setup
from gptmini.hardware import clock
from gptmini.runs import Run
from gptmini.training import EventLogger, MetricsLogger, RunCheckpoints, Scalars

from .fits import fit, subject_of
from .harness import ROOT, Table, add_overrides, in_turns, ratios

options = add_overrides


class Times(NamedTuple):
    """Seconds of a run."""

    whole: float
    scalars: float
    others: float  # text and pictures


def measure_shares(table: Table, arguments: argparse.Namespace) -> None:
    """Run with and without watching in turns."""
    subject_of(arguments.overrides)  # tells a mistake, and prepares the tokens
    kinds = {
        "with": partial(watch, arguments.overrides, is_watched=True),
        "without": partial(watch, arguments.overrides, is_watched=False),
    }
    times = in_turns(arguments.turns, kinds)
    watched = times["with"]

    table.add_median(
        "share of the run that its curves take, in percent",
        [100 * run.scalars / run.whole for run in watched],
        goal="at most 1",
    )
    table.add_median(
        "share of the run that text and pictures take, in percent",
        [100 * run.others / run.whole for run in watched],
        goal="at most 3",
    )
    table.add_median(
        "time of a run with all of it, divided by a run without",
        ratios([run.whole for run in watched], [run.whole for run in times["without"]]),
    )


def watch(overrides: list[str], *, is_watched: bool) -> Times:
    """Train from the first step to the last, and measure the run and its hooks.

    Args:
        overrides: of the run.
        is_watched: whether the run has its callbacks, or only the one that saves checkpoints.
    """
    # A callback keeps state, so that each run has its own.
    subject = subject_of(overrides)
    device = subject.settings.hardware.device
    callbacks = subject.settings.callbacks
    if not is_watched:
        callbacks = [part for part in callbacks if isinstance(part, RunCheckpoints)]

    scalars: list[float] = []
    others: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        loggers = [MetricsLogger(folder), EventLogger(folder)]
        for callback in callbacks:
            if isinstance(callback, Scalars):
                time_hooks(callback, scalars, device)
            elif not isinstance(callback, RunCheckpoints):
                time_hooks(callback, others, device)

        start = clock(device)
        parts = subject.assemble()
        if is_watched:
            run = Run(folder, None, resumed=False)
            noting(log_setup, others, device)(loggers, subject.config, parts[0], run)
        fit(subject, folder, callbacks=callbacks, loggers=loggers, parts=parts)
        whole = clock(device) - start
    return Times(whole=whole, scalars=sum(scalars), others=sum(others))


def time_hooks(callback: L.Callback, spent: list[float], device: str) -> None:
    """Have every hook that a callback defines append the seconds of each call to spent."""
    for name, inherited in vars(L.Callback).items():
        if name.startswith("on_") and getattr(type(callback), name) is not inherited:
            setattr(callback, name, noting(getattr(callback, name), spent, device))


def noting(function: Callable, spent: list[float], device: str) -> Callable:
    """The function in a form that appends the seconds of each call to spent."""

    def call(*arguments: object) -> object:
        start = clock(device)
        result = function(*arguments)
        spent.append(clock(device) - start)
        return result

    return call


def measure_start(table: Table, arguments: argparse.Namespace) -> None:
    """Time commands that answer at once."""
    goal = "at most 2"
    for what, words in (
        ("seconds of `train.py --help`", ("train.py", "--help", 0)),
        ("seconds of `sample.py --help`", ("sample.py", "--help", 0)),
        ("seconds until a wrong override is refused", ("train.py", "trainer.max_stepz=1", 2)),
    ):
        answers = in_turns(arguments.turns, {what: partial(seconds_to_answer, *words)})
        table.add_median(what, answers[what], goal=goal)


def seconds_to_answer(script: str, word: str, code: int) -> float:
    """The seconds of a script that is given one word, and must end with this exit code."""
    command = [sys.executable, str(ROOT / "scripts" / script), word]
    began = time.perf_counter()
    result = subprocess.run(command, capture_output=True, check=False)
    seconds = time.perf_counter() - began
    assert result.returncode == code, result.stderr
    return seconds


PARTS = {"shares": measure_shares, "start": measure_start}
