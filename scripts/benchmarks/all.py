"""Run every benchmark with figures in docs/results.md and write the tables of the page; this takes hours.

Each benchmark writes its JSON file in docs/results. A part that requires something missing, such as nanoGPT, is
skipped with a message and keeps its earlier figures.
"""

import argparse
import shlex
import sys
from pathlib import Path

from gptmini.system.errors import UserError

from . import page
from .harness import RESULTS, Table, output_of
from .nanogpt import add_nanogpt

SCRIPT = Path(__file__).resolve().parent.parent / "benchmark.py"


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add = parser.add_argument
    add("--shakespeare", type=Path, help="text file of tinyshakespeare (default: download it)")
    add_nanogpt(parser)
    add("--dry-run", action="store_true", help="only print the commands")


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Run the benchmarks one after the other, then write the page."""
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
    """Return the arguments of benchmark.py for every table of the page, in the order of the page."""
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
        ["serving"],
        ["preparation"],
        ["intervals"],
        ["budget", "--only", "law"],
    ]
