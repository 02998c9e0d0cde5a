"""The parts of the benchmark: speed beside peers, memory, kills, and opening a prepared folder."""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from gptmini.data import TokenStore
from gptmini.tokenizer import SPLIT_PATTERN, byte

from ..harness import GPTMINI, Ended, Table, in_turns, output_of, ratios, timed
from ..synthetic import write_store
from .peers import NANOGPT, OWN_BPE, RUSTBPE, TIKTOKEN, TOKENIZERS
from .texts import SEPARATOR, text_of

MODEL_SPEED = 550_000  # tokens a second of the 124 M model on one fast GPU
CONTEXT_LENGTH = 1024
BATCH_SIZE = 64


def prepare(path: Path, *overrides: str) -> Ended:
    """Prepare a text with GPT-2's tokenizer into a folder that is deleted."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        return timed(*command(path, Path(folder)), *overrides)


def command(path: Path, folder: Path) -> list[str]:
    """The command that prepares a text with GPT-2's tokenizer into a folder."""
    typed = [*GPTMINI, "prepare", "data=text", "tokenizer=gpt2", f"data.path={path}"]
    typed.append(f"data_dir={folder}")
    if path.suffix == ".txt" and path.stem.isdecimal():
        typed.append(f"data.separator='{SEPARATOR}'")
    return typed


def peer(arguments: argparse.Namespace, code: str, *options: str) -> float:
    """Seconds that a program of a peer measures of itself and prints in its last line."""
    return float(output_of([arguments.peer_python, "-c", code, *options]).split()[-1])


def compare(
    table: Table,
    turns: int,
    what: str,
    ours: Callable[[], float],
    theirs: Callable[[], float],
    goal: str = "",
) -> None:
    """Add a row of how many times the seconds of ours theirs takes."""
    seconds = in_turns(turns, {"gptmini": ours, "other": theirs})
    table.add_median(what, ratios(seconds["other"], seconds["gptmini"]), goal=goal)


# Speed


def tiktoken(table: Table, arguments: argparse.Namespace) -> None:
    """The whole command, against tiktoken's encode_ordinary_batch on the documents in memory."""
    text = text_of(arguments, arguments.megabytes)
    n = str(len(os.sched_getaffinity(0)))
    compare(
        table,
        arguments.turns,
        "time of tiktoken's `encode_ordinary_batch` on the documents in memory, divided by that of the whole command",
        lambda: prepare(text).seconds,
        lambda: peer(arguments, TIKTOKEN, str(text), SEPARATOR, n),
        "at least 0.85",
    )


def nanogpt(table: Table, arguments: argparse.Namespace) -> None:
    """The whole command, against nanoGPT's way with datasets.map, with as many processes as threads."""
    text = text_of(arguments, arguments.megabytes, "jsonl")
    n = len(os.sched_getaffinity(0))

    def theirs() -> float:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            return peer(arguments, NANOGPT, str(text), str(n), folder)

    compare(
        table,
        arguments.turns,
        f"time of nanoGPT's way (`datasets.map`, {n} processes), divided by that of the whole command",
        lambda: prepare(text).seconds,
        theirs,
        "at least 3",
    )


def packed(table: Table, arguments: argparse.Namespace) -> None:
    """JSON lines packed by Zstandard, against plain text of the same documents."""
    plain = text_of(arguments, arguments.megabytes)
    zst = text_of(arguments, arguments.megabytes, "jsonl.zst")
    compare(
        table,
        arguments.turns,
        "speed on JSON lines packed by Zstandard, divided by that on plain text",
        lambda: prepare(zst).seconds,
        lambda: prepare(plain).seconds,
        "at least 0.8",
    )


def bpe(table: Table, arguments: argparse.Namespace) -> None:
    """Learning 32,768 ids from 50 MB, against tokenizers alone, and rustbpe."""
    megabytes = min(50, arguments.megabytes)
    given = (str(text_of(arguments, megabytes)), SEPARATOR, "32768")
    own = argparse.Namespace(peer_python=sys.executable)
    what = f"time to learn 32,768 ids from {megabytes} MB, divided by that of"
    seconds = in_turns(
        arguments.turns,
        {
            "gptmini": lambda: peer(own, OWN_BPE, *given),
            "tokenizers": lambda: peer(arguments, TOKENIZERS, *given),
            "rustbpe": lambda: peer(arguments, RUSTBPE, *given, SPLIT_PATTERN),
        },
    )
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
    line = arguments.folder / "line.txt"
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
    n = len(os.sched_getaffinity(0))
    what = f"megabytes above these imports for each of {n} workers, at {sizes[-1]} MB of text"
    table.add(what, (held[sizes[-1]] - idle) / n, goal="at most 350")


# Kills


def kills(table: Table, arguments: argparse.Namespace) -> None:
    """Kills at random instants: every folder must be the same, byte for byte."""
    text = text_of(arguments, arguments.megabytes)
    draw = random.Random(0)
    root = arguments.folder / "killed"
    shutil.rmtree(root, ignore_errors=True)
    typed = command(text, root)
    seconds = timed(*typed).seconds
    (folder,) = root.glob("text-*")
    wanted = {path.name: path.read_bytes() for path in folder.iterdir()}

    n_kills = 0
    n_finished = 0
    n_different = 0
    while n_kills < arguments.kills:
        shutil.rmtree(folder)
        while True:
            process = subprocess.Popen(typed, stdout=subprocess.DEVNULL)
            try:
                process.wait(timeout=draw.uniform(0, seconds))
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                n_kills += 1
        n_finished += 1
        n_different += {path.name: path.read_bytes() for path in folder.iterdir()} != wanted
    shutil.rmtree(root)
    table.add("kills at random instants of the command", n_kills)
    table.add("folders finished after these kills", n_finished)
    table.add("of these folders, not the same, byte for byte", n_different, goal="0")


# Opening


def opening(table: Table, arguments: argparse.Namespace) -> None:
    """Opening a folder of many tokens, and cutting batches out of it, on disk and in memory."""
    n_tokens = arguments.tokens
    folder = arguments.folder / f"store-{n_tokens}"
    if not folder.exists():
        ids = np.random.default_rng(0).integers(0, 256, 10**6, dtype=np.uint16)
        write_store(folder, ids, n_tokens, byte([]))

    # Have the system forget what it keeps of the files.
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    began = time.perf_counter()
    store = TokenStore(folder)
    milliseconds = 1000 * (time.perf_counter() - began)
    what = f"milliseconds to open a folder of {n_tokens:,} tokens that no process has read"
    table.add(what, milliseconds, goal="below 50", method="1 run")

    goal = "at least 20"
    what = f"batches cut from it, in tokens a second divided by {MODEL_SPEED:,}"
    table.add(what, cutting_speed(store) / MODEL_SPEED, goal=goal, method="1 run")
    what = "batches cut from it when the system keeps it in memory, in the same unit"
    table.add(what, cutting_speed(store) / MODEL_SPEED, goal=goal, method="1 run")


def cutting_speed(store: TokenStore) -> float:
    """Tokens of training windows that are cut in a second."""
    from gptmini.data.batches import cut_windows, window_starts

    tokens = store.tokens("train")
    n_batches = 0
    began = time.perf_counter()
    while n_batches < 500 and time.perf_counter() - began < 10:
        numbers = np.arange(n_batches * BATCH_SIZE, (n_batches + 1) * BATCH_SIZE)
        starts = window_starts(
            numbers,
            n_tokens=store.n_tokens("train"),
            context_length=CONTEXT_LENGTH,
            seed=1,
        )
        cut_windows(tokens, starts, CONTEXT_LENGTH)
        n_batches += 1
    return n_batches * BATCH_SIZE * CONTEXT_LENGTH / (time.perf_counter() - began)
