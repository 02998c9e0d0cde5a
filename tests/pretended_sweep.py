"""A sweep of pretended runs, as a program: python pretended_sweep.py FOLDER JOBS SAMPLER."""

import sys
from pathlib import Path

from gptmini.sweep import Dimension, Space, SweepSettings, write_csv

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
    """A made-up loss of the values by key."""
    return sum(len(key) * float(value) for key, value in values.items())


def settings(**changes):
    return SweepSettings(**SETTINGS | changes)


def main(folder, jobs, sampler):
    from concurrent.futures import ThreadPoolExecutor

    from gptmini.sweep.study import Sweep
    from gptmini.sweep.worker import SweepEnd, Worker

    folder.mkdir(exist_ok=True, parents=True)
    space = Space(SPACES[sampler], ["seed=1"])
    stopping = SweepEnd()

    def work(number):
        worker = Worker(
            sweep=Sweep(folder, space, settings(sampler=sampler)),
            stopping=stopping,
            say=lambda topic, text: print(f"{topic:8} {text}", flush=True),
            on_end=lambda sweep: None,
            command=TRAIN,
        )
        worker.work()

    with stopping.listening(), ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, range(jobs)))
    sweep = Sweep(folder, space, settings(sampler=sampler))
    write_csv(folder / "table.csv", sweep.rows(), space.keys)
    if stopping.signal:
        return 128 + stopping.signal
    return 0 if sweep.is_whole() else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
