"""Preparing a text: speed beside tiktoken, nanoGPT's way and tokenizers, memory, opening, and kills.

The texts are made of what Python and the system ship, shuffled, once for each size, and kept in --folder. Commands that
are compared take turns. A command is timed whole, with its start-up; its memory is the largest that the system gave it.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from gptmini.commands.errors import Parser

from .kills import kills
from .opening import opening
from .speed import bpe, memory, nanogpt, packed, tiktoken

PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "tiktoken": tiktoken,
    "nanogpt": nanogpt,
    "packed": packed,
    "memory": memory,
    "bpe": bpe,
    "opening": opening,
    "kills": kills,
}


def main() -> None:
    """Run the chosen parts, and print a line for each figure."""
    arguments = parse_arguments()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        print(f"{name}: {PARTS[name].__doc__.splitlines()[0]}", flush=True)
        PARTS[name](arguments)


def parse_arguments() -> argparse.Namespace:
    """Read and check the command line."""
    parser = Parser(prog="benchmark.py preparation", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", choices=[*PARTS], default=[*PARTS], help="parts to run"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir(), "gptmini-preparation"),
        help="keeps the texts (default: %(default)s)",
    )
    parser.add_argument(
        "--megabytes",
        type=int,
        default=200,
        help="size of the text of most parts (default: %(default)s)",
    )
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=[20, 200, 1000],
        help="sizes of the texts of the part memory, in MB (default: 20 200 1000)",
    )
    parser.add_argument("--turns", type=int, default=3, help="turns (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=50, help="kills (default: %(default)s)")
    parser.add_argument(
        "--tokens",
        type=int,
        default=10**9,
        help="tokens of the folder that the part opening opens (default: %(default)s)",
    )
    parser.add_argument(
        "--peer-python",
        default=sys.executable,
        help="a Python with tiktoken, datasets, tokenizers and rustbpe (default: this one)",
    )

    arguments = parser.parse_args()
    if min(arguments.megabytes, arguments.turns, arguments.kills, *arguments.sizes) < 1:
        parser.error("--megabytes, --sizes, --turns and --kills must be at least 1")
    return arguments


if __name__ == "__main__":
    main()
