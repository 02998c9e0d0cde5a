"""Measure texts that are read many times: budget= of this checkout, and the default sizes of an earlier one, in turns.

--texts is a folder with handbook.txt (200 KB of Debian's developers-reference), code.txt (2 MB of Python's standard
library), german.txt and chinese.txt (1 MB each of the packages manpages-de and manpages-zh) and shakespeare.txt. The
last tenth of each text is held out.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import fmean

from gptmini.runs import read_lines

from .harness import ROOT, UNWATCHED, Table, given, timed

# The default sizes of the earlier checkout. Its budget= then chooses only the number of steps.
SIZES = (
    "tokenizer.vocab_size=4000",
    "model.d_model=128",
    "model.n_layers=2",
    "model.n_heads=4",
    "model.n_kv_heads=2",
    "model.d_ff=344",
    "model.context_length=128",
    "model.dropout=0.0",
    "trainer.global_batch_size=16",
)
TEXTS = {
    "Python's documentation": ("data=pydoc",),
    "Shakespeare, characters": ("data.path=shakespeare.txt", "tokenizer=char"),
    "Shakespeare, byte pairs": ("data.path=shakespeare.txt",),
    "handbook": ("data.path=handbook.txt",),
    "code": ("data.path=code.txt",),
    "German": ("data.path=german.txt",),
    "Chinese": ("data.path=chinese.txt",),
}


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add = parser.add_argument
    add("--texts", type=Path, help="folder with the texts")
    add("--before", type=Path, help="checkout of the earlier version")
    add("--seconds", type=int, nargs="+", default=[60, 180], help="times (default: %(default)s)")
    add("--names", nargs="+", choices=[*TEXTS], default=[*TEXTS], help="texts (default: all)")
    parser.set_defaults(turns=1)


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Train on each text for each time, first with the earlier checkout and then with this one."""
    for seconds in arguments.seconds:
        ratios = [ratio_of(table, arguments, name, seconds) for name in arguments.names]
        table.add(f"{seconds} s: mean of now / before", fmean(ratios), goal="at most 0.97")


def ratio_of(table: Table, arguments: argparse.Namespace, name: str, seconds: int) -> float:
    """Measure one text; return the bits per byte of this checkout divided by those of the earlier one."""
    text = [line.replace("path=", f"path={given(arguments, 'texts')}/") for line in TEXTS[name]]
    if "data=pydoc" not in text:
        text = ["data=text", "data.val_fraction=0.1", *text]
    sizes = SIZES[1:] if "tokenizer=char" in text else SIZES  # characters have no vocab_size
    kinds = {
        "before": (given(arguments, "before"), sizes),
        "now": (ROOT, []),
    }
    bits: dict[str, list[float]] = {kind: [] for kind in kinds}
    spent = []
    for turn in range(arguments.turns):
        for kind, (checkout, more) in kinds.items():
            best, whole = best_of(checkout, *text, *more, f"budget={seconds}", f"seed={turn + 1}")
            bits[kind].append(best)
            if kind == "now":
                spent.append(whole / seconds)
            print(f"  {name}, {seconds} s, {kind}: {best:.4f}, {whole:.0f} s", file=sys.stderr)

    before, now = fmean(bits["before"]), fmean(bits["now"])
    ratio = now / before
    table.add(
        f"{name}, {seconds} s: bits per byte, divided by those before",
        ratio,
        goal="at most 1",
        method=f"{before:.3f} before, {now:.3f} now, in {fmean(spent):.0%} of the time",
        spread=[after / first for after, first in zip(bits["now"], bits["before"], strict=True)],
    )
    return ratio


def best_of(checkout: Path, *overrides: str) -> tuple[float, float]:
    """Train with a checkout; return the lowest bits per byte and the seconds of the command."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        place = (f"folder={run}", f"data_dir={folder}/data", "trainer.val_tokens=null")
        command = (sys.executable, "-m", "gptmini", "train", *overrides, *place, *UNWATCHED)
        ended = timed(*command, cwd=checkout)
        losses = [row["val/bits_per_byte"] for row in read_lines(run) if "val/bits_per_byte" in row]
        return min(losses), ended.seconds
