"""The parts of the benchmark: speed beside peers, memory, kills, and opening a prepared folder."""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from gptmini.data import TokenStore
from gptmini.data.batches import cut_windows, window_starts
from gptmini.tokenizer import SPLIT_PATTERN, byte

from ..harness import GPTMINI, Ended, Table, in_turns, output_of, ratios, timed
from ..synthetic import write_store
from .peers import NANOGPT, OWN_BPE, RUSTBPE, TIKTOKEN, TOKENIZERS
from .texts import SEPARATOR, text_of

N_PROCESSORS = len(os.sched_getaffinity(0))
MODEL_SPEED = 550_000  # tokens a second of the 124 M model on one fast GPU
CONTEXT_LENGTH = 1024
BATCH_SIZE = 64


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


def packed(table: Table, arguments: argparse.Namespace) -> None:
    """JSON lines packed by Zstandard, against plain text of the same documents."""
    plain = text_of(arguments, arguments.megabytes)
    zst = text_of(arguments, arguments.megabytes, "jsonl.zst")
    found = times_longer(arguments, lambda: prepare(plain).seconds, lambda: prepare(zst).seconds)
    what = "speed on JSON lines packed by Zstandard, divided by that on plain text"
    table.add_median(what, found, goal="at least 0.8")


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
        while is_killed(typed, draw.uniform(0, seconds)):
            n_kills += 1
        n_finished += 1
        n_different += {path.name: path.read_bytes() for path in folder.iterdir()} != wanted
    shutil.rmtree(root)
    table.add("kills at random instants of the command", n_kills)
    table.add("folders finished after these kills", n_finished)
    table.add("of these folders, not the same, byte for byte", n_different, goal="0")


def is_killed(command: list[str], seconds: float) -> bool:
    """Run a command, kill it after some seconds, and return whether that came before its end."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    return False


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


PARTS = {
    "tiktoken": tiktoken,
    "nanogpt": nanogpt,
    "packed": packed,
    "bpe": bpe,
    "kills": kills,
    "memory": memory,
    "opening": opening,
}
