"""What a command says of the run that its command line names."""

import sys
from pathlib import Path


def say_which(given: str, taken: Path) -> None:
    """Say on stderr which run was taken, where a folder of runs was given; to be called once nothing can fail.

    Args:
        given: what was typed.
        taken: the run that it stands for, as named_run returns it.
    """
    if taken.absolute().parent == Path(given).absolute() and sys.stderr is not None:
        print(f"{given} means its newest run, {taken}", file=sys.stderr, flush=True)
