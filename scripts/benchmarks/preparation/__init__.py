"""Preparing a text: speed beside tiktoken, nanoGPT's way and tokenizers, memory, opening, and kills.

The texts are made of what Python and the system ship, shuffled, once for each size, and kept in --folder. Commands that
are compared take turns. A command is timed whole, with its start-up; its memory is the largest that the system gave it.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from ..harness import Table
from .measures import bpe, kills, memory, nanogpt, opening, packed, tiktoken

FUNCTIONS = {
    "tiktoken": tiktoken,
    "nanogpt": nanogpt,
    "packed": packed,
    "bpe": bpe,
    "kills": kills,
    "memory": memory,
    "opening": opening,
}
PARTS = tuple(FUNCTIONS)


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add = parser.add_argument
    folder = Path(tempfile.gettempdir(), "gptmini-preparation")
    add("--folder", type=Path, default=folder, help="keeps the texts (default: %(default)s)")
    add("--megabytes", type=int, default=200, help="size of the text of most parts")
    add("--sizes", type=int, nargs="+", default=[20, 200, 1000], help="of the part memory, in MB")
    add("--kills", type=int, default=50, help="kills (default: %(default)s)")
    add("--tokens", type=int, default=10**9, help="tokens of the part opening")
    peer = "a Python with tiktoken, datasets, tokenizers and rustbpe (default: this one)"
    add("--peer-python", default=sys.executable, help=peer)


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Measure the parts that were asked for."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for part in arguments.only:
        table.part = part
        FUNCTIONS[part](table, arguments)
