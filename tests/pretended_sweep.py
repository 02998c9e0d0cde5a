"""A sweep of simulated runs in a separate process."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import programs
from gptmini.sweep import Dimension, Space, SweepSettings, write_csv
from gptmini.sweep.study import Sweep
from gptmini.sweep.worker import SweepStop, Worker

RATE = Dimension("optimizer.lr", low=0.001, high=0.1, is_log=True)
LAYERS = Dimension("model.n_layers", texts=("1", "2", "3"))
LISTED = Dimension("optimizer.lr", texts=("0.01", "0.03"))
SPACES = {"grid": [LISTED, LAYERS], "random": [RATE, LAYERS], "tpe": [RATE, LAYERS]}
TRAIN = (sys.executable, str(Path(__file__).with_name("pretended_run.py")))
SETTINGS = {
    "name": "sweep",
    "sampler": "auto",
    "trials": 6,
    "seed": 1,
    "retries": 100,
    "pruner": None,
    "pruner_startup": 5,
    "pruner_warmup": 0,
    "params": {},
}


def loss_of(values):
    """Return an artificial loss of the values."""
    return sum(len(key) * float(value) for key, value in values.items())


def settings(**changes):
    return SweepSettings(**SETTINGS | changes)


def start(folder, sampler="grid", **variables):
    """Start a sweep with two workers in a folder; it exits with the codes of gptmini sweep."""
    train = partial(_train, folder, sampler)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": None}
    return programs.start(program=train, variables=variables, **quiet)


def _train(folder, sampler):
    folder.mkdir(exist_ok=True, parents=True)
    space = Space(SPACES[sampler], ["seed=1"])
    stopping = SweepStop()

    def work(number):
        worker = Worker(
            sweep=Sweep(folder, space, settings(sampler=sampler)),
            stopping=stopping,
            print_topic=lambda topic, text: None,
            on_end=lambda sweep: None,
            command=TRAIN,
        )
        worker.work()

    with stopping.catch_signals(), ThreadPoolExecutor() as pool:
        list(pool.map(work, range(2)))
    sweep = Sweep(folder, space, settings(sampler=sampler))
    write_csv(folder / "table.csv", sweep.rows(), space.keys)
    if stopping.signal:
        sys.exit(128 + stopping.signal)
    sys.exit(0 if sweep.is_complete() else 1)
