"""What several commands take: a number, and the run that a folder of runs stands for."""

import argparse
import sys
from pathlib import Path


def at_least_one(text: str) -> int:
    """The whole number that an option holds, at least 1, as a type of argparse."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text}")
    return number


def say_which(typed: Path, run: Path) -> None:
    """Say on stderr which run was taken where a folder of runs was typed; to be called once nothing can fail."""
    if run.absolute().parent != typed.absolute() or sys.stderr is None:
        return

    from gptmini.runs import named_run

    is_newest = named_run(typed).absolute() == run.absolute()
    which = "newest run" if is_newest else "newest run with a checkpoint"
    print(f"{typed} means its {which}, {run}", file=sys.stderr, flush=True)
