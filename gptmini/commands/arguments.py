"""Functions for the arguments that several commands share."""

import argparse
from pathlib import Path

from gptmini.job.printing import print_note


def at_least_one(text: str) -> int:
    """Return the value of an option as an integer of at least 1. argparse calls this function as a type."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text}")
    return number


def print_resolved_run(given: Path, run: Path) -> None:
    """If the user gave a folder of runs, print on stderr which run is used.

    Call this function only when the command can no longer fail.
    """
    if run.absolute().parent != given.absolute():
        return

    from gptmini.runs import named_run

    is_newest = named_run(given).absolute() == run.absolute()
    which = "latest run" if is_newest else "latest run with a checkpoint"
    print_note(f"using {run}, the {which} in {given}")
