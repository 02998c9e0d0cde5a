"""The parts of the benchmark: speed beside peers, and memory."""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from gptmini.tokenizer import SPLIT_PATTERN

from ..harness import GPTMINI, Ended, Table, in_turns, output_of, ratios, timed
from .peers import NANOGPT, OWN_BPE, RUSTBPE, TIKTOKEN, TOKENIZERS
from .texts import SEPARATOR, text_of

N_PROCESSORS = len(os.sched_getaffinity(0))


def prepare(path: Path) -> Ended:
    """Prepare a text with GPT-2's tokenizer into a folder that is deleted."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        return timed(*command(path, Path(folder)))


def command(path: Path, folder: Path) -> list[str]:
    """The command that prepares a text with GPT-2's tokenizer into a folder."""
    typed = [
        *GPTMINI,
        "prepare",
        "data=text",
        "tokenizer=gpt2",
        f"data.path={path}",
        f"data_dir={folder}",
    ]
    # JSON lines need no separator, and a file of one line is one document.
    if path.suffix == ".txt":
        typed.append(f"data.separator='{SEPARATOR}'")
    return typed


def peer(arguments: argparse.Namespace, code: str, *options: object) -> float:
    """Seconds that a program of a peer measures of itself and prints in its last line."""
    program = [arguments.peer_python, "-c", code, *map(str, options)]
    return float(output_of(program).split()[-1])


def times_longer(
    arguments: argparse.Namespace, these: Callable[[], float], those: Callable[[], float]
) -> list[float]:
    """The seconds of these, divided by the seconds of those, turn by turn."""
    seconds = in_turns(arguments.turns, {"these": these, "those": those})
    return ratios(seconds["these"], seconds["those"])


# Speed


def tiktoken(table: Table, arguments: argparse.Namespace) -> None:
    """The whole command, against tiktoken's encode_ordinary_batch on the documents in memory."""
    text = text_of(arguments, arguments.megabytes)
    found = times_longer(
        arguments,
        lambda: peer(arguments, TIKTOKEN, text, SEPARATOR, N_PROCESSORS),
        lambda: prepare(text).seconds,
    )
    what = "time of tiktoken's `encode_ordinary_batch` on the documents in memory, divided by that of the whole command"
    table.add_median(what, found, goal="at least 1.7")


def nanogpt(table: Table, arguments: argparse.Namespace) -> None:
    """The whole command, against nanoGPT's way with datasets.map, with as many processes as threads."""
    text = text_of(arguments, arguments.megabytes, "jsonl")

    def theirs() -> float:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            return peer(arguments, NANOGPT, text, N_PROCESSORS, folder)

    found = times_longer(arguments, theirs, lambda: prepare(text).seconds)
    way = f"`datasets.map`, {N_PROCESSORS} processes"
    what = f"time of nanoGPT's way ({way}), divided by that of the whole command"
    table.add_median(what, found, goal="at least 3")


def bpe(table: Table, arguments: argparse.Namespace) -> None:
    """Learning 32,768 ids from 50 MB, against tokenizers alone, and rustbpe."""
    megabytes = min(50, arguments.megabytes)
    learned = (text_of(arguments, megabytes), SEPARATOR, 32768)
    own = argparse.Namespace(peer_python=sys.executable)
    seconds = in_turns(
        arguments.turns,
        {
            "gptmini": lambda: peer(own, OWN_BPE, *learned),
            "tokenizers": lambda: peer(arguments, TOKENIZERS, *learned),
            "rustbpe": lambda: peer(arguments, RUSTBPE, *learned, SPLIT_PATTERN),
        },
    )
    what = f"time to learn 32,768 ids from {megabytes} MB, divided by that of"
    alone = ratios(seconds["gptmini"], seconds["tokenizers"])
    table.add_median(f"{what} `tokenizers` alone", alone, goal="at most 1.1")
    table.add_median(f"{what} rustbpe", ratios(seconds["gptmini"], seconds["rustbpe"]))


# Memory


def memory(table: Table, arguments: argparse.Namespace) -> None:
    """Memory of the whole command at several sizes, of a single line, and of Python with its imports alone."""
    imports = (
        "import gptmini.commands.prepare, hydra, gptmini.data, gptmini.tokenizer, rich.console"
    )
    idle = timed(sys.executable, "-c", imports).megabytes
    table.add("megabytes of Python with gptmini's imports alone", idle)
    held = {}
    for size in sorted(arguments.sizes):
        held[size] = prepare(text_of(arguments, size)).megabytes
        table.add(f"megabytes of memory at {size} MB of text", held[size])

    # Documents in one line, written piece by piece.
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
    "bpe": bpe,
    "memory": memory,
}
