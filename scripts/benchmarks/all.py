"""Run every benchmark whose figures docs/results.md states, and write the page's tables; this takes hours.

Each writes its JSON file in docs/results. What needs something that is not here, such as nanoGPT, is named at the end,
and keeps its earlier figures.
"""

import argparse
import shlex
import sys
from pathlib import Path

from gptmini.user_error import UserError

from . import page
from .harness import RESULTS, Table, output_of
from .nanogpt import add_nanogpt

SCRIPT = Path(__file__).resolve().parent.parent / "benchmark.py"


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add = parser.add_argument
    add("--shakespeare", type=Path, help="the text of tinyshakespeare (default: it is downloaded)")
    add_nanogpt(parser)
    add("--dry-run", action="store_true", help="print the commands alone")


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Run one benchmark after another, then write the page."""
    failed = []
    for words in commands(arguments):
        out = RESULTS / f"{words[0]}.json"
        command = [sys.executable, str(SCRIPT), *words, "--out", str(out)]
        print(shlex.join(["benchmark.py", *words]), flush=True)
        if arguments.dry_run:
            continue
        try:
            print(output_of(command))
        except UserError as error:
            failed.append(f"{words[0]}: {error}")

    if not arguments.dry_run:
        page.measure(table, arguments)
    if failed:
        raise UserError("; ".join(failed))


def commands(arguments: argparse.Namespace) -> list[list[str]]:
    """The arguments of benchmark.py for every table of the page, in the page's order."""
    text = []
    if arguments.shakespeare is not None:
        text = [f"data.path={arguments.shakespeare.resolve()}"]
    peer = []
    if arguments.nanogpt is not None:
        peer = ["--nanogpt", str(arguments.nanogpt)]

    return [
        ["default"],
        ["shakespeare", *text, *peer],
        ["training", *text, *peer],
        ["crash"],
        ["sampling", *peer],
        ["preparation"],
        ["dial", "--only", "law"],
    ]
