"""Helpers for arguments that several commands share."""

import argparse
import sys
from pathlib import Path


def at_least_one(text: str) -> int:
    """Return the whole number in an option, at least 1, as an argparse type."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text}")
    return number


def print_resolved_run(given: Path, run: Path) -> None:
    """Print on stderr which run is used if a folder of runs was given. Call it once nothing can fail anymore."""
    if run.absolute().parent != given.absolute() or sys.stderr is None:
        return

    from gptmini.runs import named_run

    is_newest = named_run(given).absolute() == run.absolute()
    which = "newest run" if is_newest else "newest run with a checkpoint"
    print(f"using {run}, the {which} in {given}", file=sys.stderr, flush=True)
