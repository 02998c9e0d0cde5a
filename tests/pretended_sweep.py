"""A sweep of simulated runs, in this process or in a separate one."""

import csv
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from optuna.distributions import CategoricalDistribution, FloatDistribution

import programs
from gptmini.commands.mistakes import one_line_errors
from gptmini.job.sweep_loop import SweepLoop
from gptmini.job.sweep_trials import Trials
from gptmini.sweep import Space, SweepSettings

RATE = FloatDistribution(0.001, 0.1, log=True)
LAYERS = CategoricalDistribution(("1", "2", "3"))
LISTED = CategoricalDistribution(("0.01", "0.03"))
SPACES = {
    "grid": {"optimizer.lr": LISTED, "model.n_layers": LAYERS},
    "random": {"optimizer.lr": RATE, "model.n_layers": LAYERS},
    "tpe": {"optimizer.lr": RATE, "model.n_layers": LAYERS},
}
TRAIN = (sys.executable, str(Path(__file__).with_name("pretended_run.py")))
SETTINGS = {
    "name": "sweep",
    "sampler": "auto",
    "trials": 6,
    "seed": 1,
    "retries": 100,
    "params": {},
}


def settings(**changes):
    return SweepSettings(**SETTINGS | changes)


def trials_in(folder, sampler="grid", dimensions=None, fixed=("seed=1",), **changes):
    space = Space(dimensions or SPACES[sampler], {}, list(fixed))
    return Trials(folder, space, settings(sampler=sampler, **changes))


def loop_of(trials, command=TRAIN, n_runs=1, retries=100, **variables):
    return SweepLoop(
        trials=trials,
        command=[*command, "trainer.threads=1"],
        variables=[variables] * n_runs,
        stdin=Path(os.devnull),
        retries=retries,
    )


def table_of(folder):
    """Return the rows of a sweep's table, without times and paths of runs."""
    with (folder / "table.csv").open() as file:
        return [row | {"seconds": "", "run": ""} for row in csv.DictReader(file)]


def start(folder, sampler="grid", retries=100, **variables):
    """Start a sweep of two runs at a time in a folder; it exits with the codes of gptmini sweep."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": None}
    return programs.start(
        program=partial(_train, folder, sampler, retries), variables=variables, **quiet
    )


def _train(folder, sampler, retries):
    loop = loop_of(trials_in(folder, sampler), n_runs=2, retries=retries)
    with one_line_errors():
        received = loop.run()
    sys.exit(128 + received if received else int(any(row.exit_code for row in loop.rows)))
