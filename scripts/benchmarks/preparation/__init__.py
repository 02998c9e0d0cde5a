"""Preparing a text: speed beside tiktoken, nanoGPT's way and tokenizers, and memory.

The texts are made of what Python and the system ship, shuffled, once for each size, and kept in --folder. Commands that
are compared take turns. A command is timed whole, with its start-up; its memory is the largest that the system gave it.
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
    add("--folder", type=Path, default=folder, help="keeps the texts (default: %(default)s)")
    add("--megabytes", type=positive, default=200, help="size of the text of most parts")
    sizes = [20, 200, 1000]
    add("--sizes", type=positive, nargs="+", default=sizes, help="of the part memory, in MB")
    peer = "a Python with tiktoken, datasets, tokenizers and rustbpe (default: this one)"
    add("--peer-python", default=sys.executable, help=peer)


def prepare(arguments: argparse.Namespace) -> None:
    """Make the folder of the texts."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
