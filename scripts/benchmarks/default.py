"""Measure the default run: time of the entire command, and bits per byte compared with xz."""

import argparse
import lzma
import tempfile

from .fits import subject_of
from .harness import Run, Table, add_overrides, in_turns, train

# Other runs that the page compares with the default run.
VARIANTS = {
    "with AdamW": ("optimizer=adamw",),
    "with smears and a cap on logits, which no other program reads": (
        "model.smear=3",
        "model.mlp_smear=1",
        "model.logit_softcap=15.0",
    ),
}

options = add_overrides


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Time the command, train the variants, and compress the text."""
    overrides = arguments.overrides

    def whole_command() -> Run:
        with tempfile.TemporaryDirectory() as folder:
            return train(*overrides, f"data_dir={folder}")

    runs = in_turns(arguments.turns, {"default": whole_command})["default"]
    seconds = [run.seconds for run in runs]
    table.add_median("seconds of the whole command, text not prepared", seconds, goal="at most 100")
    what = "bits per byte of the held-out text"
    table.add(what, bits_per_byte(runs[0]), goal="at most 1.56", method="1 run")
    what = "validation loss of the held-out text, in nats per token"
    table.add(what, runs[0].loss, method="1 run")

    for name, changes in VARIANTS.items():
        bits = bits_per_byte(train(*changes, *overrides))
        table.add(f"bits per byte {name}", bits, method="1 run")

    store = subject_of(overrides).store
    held_out = store.tokenizer.decode(store.tokens("val").tolist()).encode()
    training = store.tokenizer.decode(store.tokens("train").tolist()).encode()
    alone = 8 * size_of(held_out) / len(held_out)
    added = size_of(training + held_out) - size_of(training)
    table.add("bits per byte of `xz -9e` on the held-out text", alone)
    told = 8 * added / len(held_out)
    table.add("bits per byte of `xz -9e` after the training text", told)


def bits_per_byte(run: Run) -> float:
    """Return the last validation loss of a run in bits per byte."""
    return run.of("val/bits_per_byte")[-1]


def size_of(text: bytes) -> int:
    """Return the number of bytes after compression with xz -9e."""
    return len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
