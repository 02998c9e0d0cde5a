"""Kill a real training run again and again, resume it, and compare its end with a run that nobody killed.

Of the part run, a third of the kills falls on start-up, a third on any instant of training, a third inside the write
of a checkpoint. The other parts kill processes of runs on two processes, under every launcher, and a sweep.
"""

import argparse

from ..harness import positive
from .processes import kill_processes
from .single import kill_runs
from .sweeps import kill_sweeps

PARTS = {"run": kill_runs, "processes": kill_processes, "sweep": kill_sweeps}


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add = parser.add_argument
    add("--kills", type=positive, default=50, help="kills of each part (default: %(default)s)")
    add("--seed", type=int, default=1, help="seed of their instants (default: %(default)s)")
