"""What watching costs: the share of a run that its scalars, samples and pictures take, and a run without them.

Runs with and without take turns. The shares are measured inside the runs with them, hook by hook, with the events that
each hook writes. On a GPU each hook first waits until the device has finished its work, so that no hook pays for
another's. The part start measures how soon a command answers.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .harness import ROOT, Table, fit, in_turns, ratios, seconds_of, subject_of, timed

if TYPE_CHECKING:
    import lightning as L

PARTS = ("shares", "start")


class Times(NamedTuple):
    """Seconds of a run."""

    whole: float
    scalars: float
    others: float  # text and pictures


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add = parser.add_argument
    add("overrides", nargs="*", help="overrides as for gptmini train (default: the default run)")


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Measure the parts that were asked for."""
    if "shares" in arguments.only:
        table.part = "shares"
        measure_shares(table, arguments)
    if "start" in arguments.only:
        table.part = "start"
        measure_start(table, arguments)


def measure_shares(table: Table, arguments: argparse.Namespace) -> None:
    """Run with and without watching in turns."""
    subject_of(arguments.overrides)  # tells a mistake, and prepares the tokens
    kinds = {
        "with": partial(watch, arguments.overrides, is_watched=True),
        "without": partial(watch, arguments.overrides, is_watched=False),
    }
    times = in_turns(arguments.turns, kinds)
    with_them = times["with"]
    whole = [run.whole for run in with_them]

    table.add_median(
        "share of the run that its curves take, in percent",
        [100 * run.scalars / run.whole for run in with_them],
        goal="at most 1",
    )
    table.add_median(
        "share of the run that text and pictures take, in percent",
        [100 * run.others / run.whole for run in with_them],
        goal="at most 3",
    )
    table.add_median(
        "time of a run with all of it, divided by a run without",
        ratios(whole, [run.whole for run in times["without"]]),
    )


def measure_start(table: Table, arguments: argparse.Namespace) -> None:
    """Time commands that answer at once."""
    for name in ("train.py", "sample.py"):
        command = [sys.executable, str(ROOT / "scripts" / name), "--help"]
        seconds = [timed(*command).seconds for _ in range(arguments.turns)]
        table.add_median(f"seconds of `{name} --help`", seconds, goal="at most 2")

    wrong = [sys.executable, str(ROOT / "scripts" / "train.py"), "trainer.max_stepz=1"]
    refused = partial(subprocess.run, wrong, stderr=subprocess.DEVNULL, check=False)
    seconds = [seconds_of(refused) for _ in range(arguments.turns)]
    table.add_median("seconds until a wrong override is refused", seconds, goal="at most 2")


def watch(overrides: list[str], *, is_watched: bool) -> Times:
    """Train from the first step to the last, and measure the run and its hooks.

    Args:
        overrides: of the run.
        is_watched: whether the run has its callbacks, or only the one that saves checkpoints.
    """
    from gptmini.commands.fitting import log_setup
    from gptmini.commands.train import assemble
    from gptmini.hardware import clock
    from gptmini.runs import Run
    from gptmini.training import EventLogger, MetricsLogger, RunCheckpoints, Scalars

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
        parts = assemble(subject.settings, subject.store, None)
        if is_watched:
            run = Run(folder, None, resumed=False)
            noting(log_setup, others, device)(loggers, subject.config, parts[0], run)
        fit(subject, folder, callbacks=callbacks, loggers=loggers, parts=parts)
        whole = clock(device) - start
    return Times(whole=whole, scalars=sum(scalars), others=sum(others))


def time_hooks(callback: "L.Callback", spent: list[float], device: str) -> None:
    """Have every hook that a callback defines append the seconds of each call to spent."""
    import lightning as L

    for name, inherited in vars(L.Callback).items():
        if not name.startswith("on_") or getattr(type(callback), name) is inherited:
            continue
        setattr(callback, name, noting(getattr(callback, name), spent, device))


def noting(function: Callable, spent: list[float], device: str) -> Callable:
    """The function in a form that appends the seconds of each call to spent."""
    from gptmini.hardware import clock

    def call(*arguments: object) -> object:
        start = clock(device)
        result = function(*arguments)
        spent.append(clock(device) - start)
        return result

    return call
