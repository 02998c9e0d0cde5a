"""What watching costs: the share of a run that its scalars, samples and pictures take, and a run without them.

Runs with and without take turns. The shares are measured inside the runs with them, hook by hook, with the events that
each hook writes. On a GPU each hook first waits until the device has finished its work, so that no hook pays for
another's.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lightning as L
import torch
from omegaconf import DictConfig

from gptmini.commands.compose import Typed, compose
from gptmini.commands.errors import Parser
from gptmini.commands.fitting import log_setup
from gptmini.commands.resumed import going_on
from gptmini.commands.settings import build_settings
from gptmini.commands.tokens import open_tokens
from gptmini.commands.train import assemble
from gptmini.hardware import clock, keep_freed_memory
from gptmini.training import EventLogger, MetricsLogger, RunCheckpoints, Scalars, build_trainer
from gptmini.training.run import Run


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of a run."""

    whole: float
    scalars: float
    others: float  # text and pictures


def main() -> None:
    """Run with and without watching in turns, and print each turn and the medians."""
    arguments = parse_arguments()
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    config, typed = compose("train", [*arguments.overrides, "trainer.devices=1"])
    config, typed = going_on(config, typed)

    with_them: list[Times] = []
    ratios = []
    for turn in range(arguments.turns):
        # The second run of a turn finds a warmer machine, so each kind comes first in every other turn.
        watched_first = turn % 2 == 0
        taken = {}
        with tempfile.TemporaryDirectory() as folder:
            for watched in (watched_first, not watched_first):
                taken[watched] = fit(config, typed, Path(folder) / str(watched), watched=watched)

        run = taken[True]
        without = taken[False].whole
        with_them.append(run)
        ratios.append(run.whole / without)
        print(
            f"turn {turn + 1}: {run.whole:.2f} s, of it scalars {run.scalars:.3f} s, "
            f"text and pictures {run.others:.3f} s; without them {without:.2f} s",
            flush=True,
        )

    scalars = statistics.median(run.scalars / run.whole for run in with_them)
    others = statistics.median(run.others / run.whole for run in with_them)
    ratio = statistics.median(ratios)
    print(f"{'scalars':18} {scalars:.2%} of the run")
    print(f"{'text and pictures':18} {others:.2%} of the run")
    print(f"{'with to without':18} {ratio:.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")


def parse_arguments() -> argparse.Namespace:
    """Read and check the command line."""
    parser = Parser(prog="benchmark.py watching", description=__doc__.splitlines()[0])
    parser.add_argument(
        "overrides",
        nargs="*",
        help="overrides as for gptmini train (default: the default run)",
    )
    parser.add_argument(
        "--turns",
        type=int,
        default=3,
        help="pairs of a run with and a run without watching (default: %(default)s)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
        help="CPU threads (default: %(default)s)",
    )

    arguments = parser.parse_args()
    if min(arguments.turns, arguments.threads) < 1:
        parser.error("--turns and --threads must be at least 1")
    return arguments


def fit(config: DictConfig, typed: Typed, folder: Path, *, watched: bool) -> Times:
    """Train from the first step to the last, and measure the run and its hooks.

    Args:
        config: the run's configuration.
        typed: what was typed for it.
        folder: the folder of the events and checkpoints.
        watched: whether the run has its callbacks, or only the one that saves checkpoints.
    """
    settings = build_settings(config)
    device = settings.hardware.device
    store, _ = open_tokens(config, typed, settings)
    callbacks = settings.callbacks
    if not watched:
        callbacks = [part for part in callbacks if isinstance(part, RunCheckpoints)]

    start = clock(device)
    module, data = assemble(settings, store, None)
    folder.mkdir()
    run = Run(folder, None, resumed=False)
    loggers = [MetricsLogger(folder), EventLogger(folder)]
    scalars: list[float] = []
    others: list[float] = []
    for callback in callbacks:
        if isinstance(callback, Scalars):
            time_hooks(callback, scalars, device)
        elif not isinstance(callback, RunCheckpoints):
            time_hooks(callback, others, device)
    if watched:
        timed(log_setup, others, device)(loggers, config, module, run)

    trainer = build_trainer(
        module.settings,
        folder,
        device=device,
        precision=settings.hardware.precision,
        callbacks=callbacks,
        loggers=loggers,
    )
    trainer.fit(module, data)
    return Times(whole=clock(device) - start, scalars=sum(scalars), others=sum(others))


def time_hooks(callback: L.Callback, spent: list[float], device: str) -> None:
    """Have every hook that a callback defines append the seconds of each call to spent."""
    for name, inherited in vars(L.Callback).items():
        if not name.startswith("on_") or getattr(type(callback), name) is inherited:
            continue
        setattr(callback, name, timed(getattr(callback, name), spent, device))


def timed(function: Callable, spent: list[float], device: str) -> Callable:
    """Return the function in a form that appends the seconds of each call to spent."""

    def call(*arguments: object) -> object:
        start = clock(device)
        result = function(*arguments)
        spent.append(clock(device) - start)
        return result

    return call


if __name__ == "__main__":
    main()
