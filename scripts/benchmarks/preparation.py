"""Preparing a text: speed beside tiktoken, nanoGPT's way and tokenizers, memory, opening, and kills.

The texts are made of what Python and the system ship, shuffled, once for each size, and kept in --folder. Commands that
are compared take turns. A command is timed whole, with its start-up; its memory is the largest that the system gave it.
"""

import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gptmini.checks import UserError
from gptmini.commands.errors import Parser
from gptmini.data.batches import cut_windows, window_starts
from gptmini.data.format import FORMAT
from gptmini.data.meta import write_meta
from gptmini.data.preparation.writing import SplitWriter
from gptmini.data.store import TokenStore
from gptmini.processors import n_processors
from gptmini.tokenizer import byte

# Folders that hold text on most systems, besides Python's own.
ROOTS = [Path(sysconfig.get_path("stdlib")), Path("/usr/share"), Path("/usr/lib"), Path(sys.prefix)]
SMALLEST = 200  # bytes of a file that is taken
LARGEST = 300_000
SEPARATOR = "<|document|>"

MODEL_SPEED = 550_000  # tokens a second of the 124 M model on one fast GPU
CONTEXT_LENGTH = 1024
BATCH_SIZE = 64


class Run(NamedTuple):
    """A command that has ended."""

    seconds: float
    megabytes: float  # the most memory that it held at once


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


def text_of(arguments: argparse.Namespace, megabytes: int, ending: str = "txt") -> Path:
    """The file with a text of so many megabytes, which is made if it is not there: txt, jsonl or jsonl.zst."""
    path = arguments.folder / f"{megabytes}.{ending}"
    if path.exists():
        return path
    if ending == "jsonl.zst":
        import pyarrow

        plain = text_of(arguments, megabytes, "jsonl")
        with (
            plain.open("rb") as file,
            pyarrow.output_stream(str(path), compression="zstd") as packed,
        ):
            shutil.copyfileobj(file, packed, 2**22)
        return path

    import json

    with path.open("w", encoding="utf-8") as file:
        n_bytes = 0
        for text in endless_documents():
            file.write(text + SEPARATOR if ending == "txt" else json.dumps({"text": text}) + "\n")
            n_bytes += len(text.encode())
            if n_bytes >= megabytes * 10**6:
                return path
    return path


def endless_documents() -> Iterator[str]:
    """The texts of this machine in an order that is always the same, again and again."""
    files = []
    for root in ROOTS:
        for path in sorted(root.rglob("*")):
            if (
                path.is_file()
                and not path.is_symlink()
                and SMALLEST < path.stat().st_size < LARGEST
            ):
                files.append(path)
    random.Random(0).shuffle(files)
    while True:
        for path in files:
            data = path.read_bytes()
            if b"\0" in data:
                continue
            try:
                yield data.decode()
            except UnicodeDecodeError:
                continue


def run(*command: str) -> Run:
    """Run a command; UserError if it fails."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if status:
        raise UserError(f"{' '.join(command)} failed")
    return Run(seconds, usage.ru_maxrss / 1024)


def prepare(path: Path, *overrides: str) -> Run:
    """Prepare a text into a folder that is deleted."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        options = [f"data.path={path}", f"data_dir={folder}", *overrides]
        if path.suffix == ".txt":
            options.append(f"data.separator='{SEPARATOR}'")
        return run(sys.executable, "-m", "gptmini", "prepare", "data=text", *options)


def peer(arguments: argparse.Namespace, code: str, *options: str) -> float:
    """Seconds that a program of a peer measures of itself and prints in its last line."""
    command = [arguments.peer_python, "-c", code, *options]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode:
        raise UserError(f"the peer failed: {result.stderr}")
    return float(result.stdout.split()[-1])


def compare(turns: int, ours: Callable[[], float], theirs: Callable[[], float], name: str) -> None:
    """Print how many times as fast as theirs ours is: the median of the turns, and their range."""
    ratios = []
    for _ in range(turns):
        own = ours()
        other = theirs()
        ratios.append(other / own)
        print(f"  gptmini {own:6.1f} s, {name} {other:6.1f} s: {other / own:.2f}", flush=True)
    print(f"  median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


TIKTOKEN = """
import sys, time, tiktoken
documents = [text for text in open(sys.argv[1], newline="").read().split(sys.argv[2]) if text]
encoding = tiktoken.get_encoding("gpt2")
encoding.encode_ordinary("")
began = time.perf_counter()
encoding.encode_ordinary_batch(documents, num_threads=int(sys.argv[3]))
print(time.perf_counter() - began)
"""


def tiktoken(arguments: argparse.Namespace) -> None:
    """The whole command, against tiktoken's encode_ordinary_batch on the documents in memory."""
    text = text_of(arguments, arguments.megabytes)
    n = str(n_processors())
    compare(
        arguments.turns,
        lambda: prepare(text, "tokenizer=gpt2").seconds,
        lambda: peer(arguments, TIKTOKEN, str(text), SEPARATOR, n),
        "tiktoken",
    )


# After data/openwebtext/prepare.py: documents are encoded by datasets.map, and written in 1,024 batches.
NANOGPT = """
import sys, tempfile, time
import datasets, numpy, tiktoken
began = time.perf_counter()
encoding = tiktoken.get_encoding("gpt2")
folder = tempfile.mkdtemp(dir=sys.argv[3])

def process(example):
    ids = encoding.encode_ordinary(example["text"])
    ids.append(encoding.eot_token)
    return {"ids": ids, "len": len(ids)}

n = int(sys.argv[2])
dataset = datasets.load_dataset("json", data_files=sys.argv[1], cache_dir=folder, split="train")
tokenized = dataset.map(process, remove_columns=["text"], num_proc=n)
length = numpy.sum(tokenized["len"], dtype=numpy.uint64)
array = numpy.memmap(folder + "/train.bin", dtype=numpy.uint16, mode="w+", shape=(length,))
index = 0
for i in range(1024):
    batch = tokenized.shard(num_shards=1024, index=i, contiguous=True).with_format("numpy")
    if len(batch) == 0:
        continue
    ids = numpy.concatenate(batch["ids"])
    array[index : index + len(ids)] = ids
    index += len(ids)
array.flush()
print(time.perf_counter() - began)
"""


def nanogpt(arguments: argparse.Namespace) -> None:
    """The whole command, against nanoGPT's way with datasets.map, with as many processes as threads."""
    text = text_of(arguments, arguments.megabytes, "jsonl")
    n = str(n_processors())

    def theirs() -> float:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            return peer(arguments, NANOGPT, str(text), n, folder)

    compare(
        arguments.turns,
        lambda: prepare(text, "tokenizer=gpt2").seconds,
        theirs,
        "nanoGPT's way",
    )


def packed(arguments: argparse.Namespace) -> None:
    """JSON lines packed by Zstandard, against plain text of the same documents; the ratio is of their speeds."""
    plain = text_of(arguments, arguments.megabytes)
    zst = text_of(arguments, arguments.megabytes, "jsonl.zst")
    compare(
        arguments.turns,
        lambda: prepare(zst, "tokenizer=gpt2").seconds,
        lambda: prepare(plain, "tokenizer=gpt2").seconds,
        "plain text",
    )


def memory(arguments: argparse.Namespace) -> None:
    """Memory of the whole command at several sizes, of a single line, and of Python with its imports alone."""
    imports = (
        "import gptmini.commands.prepare, hydra, gptmini.data, gptmini.tokenizer, rich.console"
    )
    idle = run(sys.executable, "-c", imports)
    print(f"  imports alone {idle.megabytes:,.0f} MB")
    n = n_processors()
    for megabytes in arguments.sizes:
        path = text_of(arguments, megabytes)
        held = prepare(path, "tokenizer=gpt2").megabytes
        a_worker = (held - idle.megabytes) / n
        print(f"  {megabytes:5} MB {held:6,.0f} MB, {a_worker:,.0f} MB a worker of {n}", flush=True)

    # This process holds little of the text at once: a command that it starts counts its memory as its own at first.
    line = arguments.folder / "line.txt"
    with (
        text_of(arguments, arguments.megabytes).open(encoding="utf-8") as text,
        line.open("w", encoding="utf-8") as file,
    ):
        while block := text.read(2**20):
            file.write(" ".join(block.split("\n")))
    size = line.stat().st_size / 10**6
    held = run(
        *(sys.executable, "-m", "gptmini", "prepare", "data=text", "tokenizer=gpt2"),
        *(f"data.path={line}", f"data_dir={arguments.folder / 'of-line'}"),
    ).megabytes
    shutil.rmtree(arguments.folder / "of-line")
    line.unlink()
    print(
        f"  one line of {size:,.0f} MB {held:,.0f} MB, {(held - idle.megabytes) / n:,.0f} a worker"
    )


TOKENIZERS = """
import sys, time
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
began = time.perf_counter()
documents = [text for text in open(sys.argv[1], newline="").read().split(sys.argv[2]) if text]
learner = Tokenizer(models.BPE())
learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trainer = trainers.BpeTrainer(
    vocab_size=int(sys.argv[3]),
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
)
learner.train_from_iterator(documents, trainer)
print(time.perf_counter() - began)
"""

RUSTBPE = r"""
import sys, time, rustbpe
began = time.perf_counter()
documents = [text for text in open(sys.argv[1], newline="").read().split(sys.argv[2]) if text]
learner = rustbpe.Tokenizer()
learner.train_from_iterator(iter(documents), int(sys.argv[3]), pattern=sys.argv[4])
print(time.perf_counter() - began)
"""

OWN_BPE = """
import sys, time
from gptmini import tokenizer
from gptmini.data import Document
began = time.perf_counter()
documents = [text for text in open(sys.argv[1], newline="").read().split(sys.argv[2]) if text]
tokenizer.bpe([Document("train", text) for text in documents], vocab_size=int(sys.argv[3]), train_bytes=2 * 10**8)
print(time.perf_counter() - began)
"""


def bpe(arguments: argparse.Namespace) -> None:
    """Learning 32,768 ids from 50 MB, against tokenizers alone, and rustbpe."""
    from gptmini.tokenizer import SPLIT_PATTERN

    text = str(text_of(arguments, min(50, arguments.megabytes)))
    own = argparse.Namespace(peer_python=sys.executable)
    for name, code, options in (
        ("tokenizers", TOKENIZERS, ()),
        ("rustbpe", RUSTBPE, (SPLIT_PATTERN,)),
    ):
        compare(
            arguments.turns,
            lambda: peer(own, OWN_BPE, text, SEPARATOR, "32768"),
            lambda code=code, options=options: peer(
                arguments, code, text, SEPARATOR, "32768", *options
            ),
            name,
        )


def opening(arguments: argparse.Namespace) -> None:
    """Opening a folder of many tokens, and cutting batches out of it."""
    for n_tokens in (10**5, arguments.tokens):
        folder = arguments.folder / f"store-{n_tokens}"
        if not folder.exists():
            write_store(folder, n_tokens)
        for state in ("cold", "warm"):
            store = None  # to give a mapped file back takes its time too
            if state == "cold":
                drop_from_memory(folder)
            began = time.perf_counter()
            store = TokenStore(folder)
            opened = time.perf_counter() - began
            speed = batches_a_second(store) * BATCH_SIZE * CONTEXT_LENGTH
            print(
                f"  {n_tokens:,} tokens, {state}: opened in {opened * 1000:.1f} ms, {speed / 1e6:,.0f} M tokens/s, "
                f"{speed / MODEL_SPEED:,.0f} times the 124 M model's",
                flush=True,
            )


def write_store(folder: Path, n_tokens: int) -> None:
    """Write a prepared folder of documents of a thousand random ids."""
    folder.mkdir()
    ids = np.random.default_rng(0).integers(0, 256, 10**6, dtype=np.uint16)
    meta: dict = {
        "format": FORMAT,
        "source": {"corpus": "random"},
        "builder": {"name": "byte"},
        "fingerprint": str(n_tokens),
        "dtype": "uint16",
        "tokenizer": byte([]).to_dict(),
    }
    for split, n in (("train", n_tokens), ("val", 10**5)):
        with closing(SplitWriter(folder, split, folder)) as writer:
            for first in range(0, n, len(ids)):
                some = ids[: min(len(ids), n - first)]
                n_ids = np.full(len(some) // 1000, 1000)
                writer.write(
                    some, n_ids=n_ids, ends=np.ones(len(n_ids), dtype=bool), n_bytes=len(some)
                )
            meta[split] = writer.finish()
    write_meta(folder, meta, place=folder)


def drop_from_memory(folder: Path) -> None:
    """Let the system forget what it keeps of the files of a folder."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def batches_a_second(store: TokenStore) -> float:
    """Batches of training windows that are cut in a second."""
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
    return n_batches / (time.perf_counter() - began)


def kills(arguments: argparse.Namespace) -> None:
    """Kills at random instants: every folder must be the same, byte for byte."""
    text = text_of(arguments, arguments.megabytes)
    draw = random.Random(0)
    root = arguments.folder / "killed"
    shutil.rmtree(root, ignore_errors=True)
    command = [
        *(sys.executable, "-m", "gptmini", "prepare", "data=text", "tokenizer=gpt2"),
        *(f"data.path={text}", f"data.separator='{SEPARATOR}'", f"data_dir={root}"),
    ]
    seconds = run(*command).seconds
    (folder,) = root.glob("text-*")
    wanted = {path.name: path.read_bytes() for path in folder.iterdir()}
    print(f"  {seconds:.1f} s without a kill")

    n_kills = 0
    n_finished = 0
    n_same = 0
    while n_kills < arguments.kills:
        shutil.rmtree(folder)
        while True:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            try:
                process.wait(timeout=draw.uniform(0, seconds))
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                n_kills += 1
        n_finished += 1
        n_same += {path.name: path.read_bytes() for path in folder.iterdir()} == wanted
    print(f"  {n_kills} kills, {n_finished} folders, {n_same} the same")
    shutil.rmtree(root)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "tiktoken": tiktoken,
    "nanogpt": nanogpt,
    "packed": packed,
    "memory": memory,
    "bpe": bpe,
    "opening": opening,
    "kills": kills,
}


if __name__ == "__main__":
    main()
