"""Speed and memory of a preparation, beside those of peers."""

import argparse
import os
import shutil
import sys
import tempfile

from gptmini.tokenizer import SPLIT_PATTERN

from .commands import compare, peer, prepare, run
from .peers import NANOGPT, OWN_BPE, RUSTBPE, TIKTOKEN, TOKENIZERS
from .texts import SEPARATOR, text_of


def tiktoken(arguments: argparse.Namespace) -> None:
    """The whole command, against tiktoken's encode_ordinary_batch on the documents in memory."""
    text = text_of(arguments, arguments.megabytes)
    n = str(len(os.sched_getaffinity(0)))
    compare(
        arguments.turns,
        lambda: prepare(text, "tokenizer=gpt2").seconds,
        lambda: peer(arguments, TIKTOKEN, str(text), SEPARATOR, n),
        "tiktoken",
    )


def nanogpt(arguments: argparse.Namespace) -> None:
    """The whole command, against nanoGPT's way with datasets.map, with as many processes as threads."""
    text = text_of(arguments, arguments.megabytes, "jsonl")
    n = str(len(os.sched_getaffinity(0)))

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
    n = len(os.sched_getaffinity(0))
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


def bpe(arguments: argparse.Namespace) -> None:
    """Learning 32,768 ids from 50 MB, against tokenizers alone, and rustbpe."""
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
