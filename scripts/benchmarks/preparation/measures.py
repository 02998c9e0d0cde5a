"""The parts of the benchmark: speed compared with other programs, and memory."""

import argparse
import os
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from ..harness import GPTMINI, Ended, Table, in_turns, output_of, ratios, timed
from .peers import NANOGPT, TIKTOKEN
from .texts import SEPARATOR, text_of

N_PROCESSORS = len(os.sched_getaffinity(0))


def prepare(path: Path) -> Ended:
    """Prepare a text with GPT-2's tokenizer in a temporary folder."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        return timed(*command(path, Path(folder)))


def command(path: Path, folder: Path) -> list[str]:
    """Return the command that prepares a text with GPT-2's tokenizer in a folder."""
    words = [
        *GPTMINI,
        "prepare",
        "data=text",
        "tokenizer=gpt2",
        f"data.path={path}",
        f"data_dir={folder}",
    ]
    # JSON lines need no separator, and a file with a single line is one document.
    if path.suffix == ".txt":
        words.append(f"data.separator='{SEPARATOR}'")
    return words


def peer(arguments: argparse.Namespace, code: str, *options: object) -> float:
    """Run a program of peers.py; return the seconds that it prints in its last line."""
    program = [arguments.peer_python, "-c", code, *map(str, options)]
    return float(output_of(program).split()[-1])


# Speed


def tiktoken(table: Table, arguments: argparse.Namespace) -> None:
    """Compare the entire command with tiktoken's encode_ordinary_batch on documents in memory."""
    text = text_of(arguments, arguments.megabytes)
    seconds = in_turns(
        arguments.turns,
        {
            "tiktoken": lambda: peer(arguments, TIKTOKEN, text, SEPARATOR, N_PROCESSORS),
            "gptmini": lambda: prepare(text).seconds,
        },
    )
    what = "time of tiktoken's `encode_ordinary_batch` on the documents in memory, divided by that of the whole command"
    table.add_median(what, ratios(seconds["tiktoken"], seconds["gptmini"]), goal="at least 1.7")


def nanogpt(table: Table, arguments: argparse.Namespace) -> None:
    """Compare the entire command with nanoGPT's method, datasets.map with one process per CPU core."""
    text = text_of(arguments, arguments.megabytes, "jsonl")

    def theirs() -> float:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            return peer(arguments, NANOGPT, text, N_PROCESSORS, folder)

    ended = in_turns(
        arguments.turns,
        {
            "nanoGPT": theirs,
            "gptmini": lambda: prepare(text),
        },
    )
    seconds = [one.seconds for one in ended["gptmini"]]
    way = f"`datasets.map`, {N_PROCESSORS} processes"
    what = f"time of nanoGPT's way ({way}), divided by that of the whole command"
    table.add_median(what, ratios(ended["nanoGPT"], seconds), goal="at least 3")

    what = f"megabytes of memory at {arguments.megabytes} MB of JSON lines"
    table.add_median(what, [one.megabytes for one in ended["gptmini"]])


# Memory


def memory(table: Table, arguments: argparse.Namespace) -> None:
    """Measure the memory of the command at several sizes and on a single line, and of Python with only the imports."""
    imports = (
        "import gptmini.commands.prepare, hydra, gptmini.data, gptmini.tokenizer, rich.console"
    )
    idle = timed(sys.executable, "-c", imports).megabytes
    table.add("megabytes of Python with gptmini's imports alone", idle)
    held = {}
    for size in sorted(arguments.sizes):
        held[size] = prepare(text_of(arguments, size)).megabytes
        table.add(f"megabytes of memory at {size} MB of text", held[size])

    # Put all documents in one line. Write it in pieces, to save memory.
    line = arguments.folder / "one.line"
    with (
        text_of(arguments, arguments.megabytes).open(encoding="utf-8") as text,
        line.open("w", encoding="utf-8") as file,
    ):
        while block := text.read(2**20):
            file.write(" ".join(block.split("\n")))
    megabytes = prepare(line).megabytes
    line.unlink()
    table.add(f"megabytes of memory on one line of {arguments.megabytes} MB", megabytes)

    sizes = list(held)
    for small, large in pairwise(sizes):
        what = f"memory at {large} MB of text, divided by that at {small} MB"
        table.add(what, held[large] / held[small], goal="at most 1.1")
    what = f"megabytes above these imports for each of {N_PROCESSORS} workers, at {sizes[-1]} MB of text"
    table.add(what, (held[sizes[-1]] - idle) / N_PROCESSORS, goal="at most 350")


PARTS = {
    "tiktoken": tiktoken,
    "nanogpt": nanogpt,
    "memory": memory,
}
