"""Measure the preparation of text: speed compared with tiktoken and nanoGPT's method, and memory.

The text consists of files of Python and the system in random order. It is written once for
each size and kept in --folder. Compared commands take turns. The time of a command includes its start-up; its memory is
the peak that the system reports.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from ..harness import positive
from .measures import PARTS

__all__ = ["PARTS"]


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add = parser.add_argument
    folder = Path(tempfile.gettempdir(), "gptmini-preparation")
    add("--folder", type=Path, default=folder, help="folder for the texts (default: %(default)s)")
    add("--megabytes", type=positive, default=200, help="size of the text in most parts")
    sizes = [20, 200, 1000]
    add("--sizes", type=positive, nargs="+", default=sizes, help="sizes in the part memory, in MB")
    peer = "Python with tiktoken and datasets (default: this Python)"
    add("--peer-python", default=sys.executable, help=peer)


def prepare(arguments: argparse.Namespace) -> None:
    """Create the folder of the texts."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
