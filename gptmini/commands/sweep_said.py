"""What gptmini sweep says: its table where something in it has changed, and at the end the best of its trials."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.commands.overrides import key_of
from gptmini.commands.say import lines_of as said_lines
from gptmini.sweep import Row, best_of, lines_of, settings_of, write_csv

if TYPE_CHECKING:
    from gptmini.sweep.study import Sweep


class Table:
    """Prints the table of a sweep, and writes it as table.csv, where something in it has changed."""

    def __init__(self) -> None:
        self._told: list[Row] = []

    def show(self, sweep: "Sweep") -> list[Row]:
        """Show the trials as the journal has them now; return their rows."""
        rows = sweep.rows()
        if rows != self._told:
            self._told = rows
            keys = sweep.space.keys
            write_csv(sweep.folder / "table.csv", rows, keys)
            tell("sweep", *lines_of(rows, keys, by_bits=sweep.space.by_bits))
        return rows


def say_ending(sweep: "Sweep", rows: Sequence[Row], options: argparse.Namespace) -> None:
    """Print the best trial and the command that trains it, and how many trials are not done."""
    best = best_of(rows, by_bits=sweep.space.by_bits)
    if best is not None:
        texts = best.texts
        place = f"trial {best.number}, {best.run}"
        if "seed" in texts:
            # Of a setting the seed that did best says little; the command leaves the seed to the user.
            texts = settings_of(rows, by_bits=sweep.space.by_bits)[0].texts
            values = " ".join(f"{key}={text}" for key, text in texts.items())
            tell("setting", f"{values or 'the one there is'}: lowest mean over its seeds")
        figures = [f"val loss {best.loss:.4f}", f"{best.bits_per_byte:.4f} bits per byte"]
        if sweep.space.by_bits:
            figures.reverse()
        tell("best", f"{', '.join(figures)}, step {best.step}: {place}")
        # A run of the sweep's name would lie among those of the sweep.
        overrides = [line for line in sweep.space.overrides(texts) if key_of(line) != "name"]
        tell("train", shlex.join(["gptmini", "train", *overrides, *own_folder(options)]))

    n_failed = len([row for row in rows if row.state == "failed"])
    if n_failed:
        tell(
            "failed",
            f"{n_failed} of {len(rows)}, which are not tried again; name=OTHER begins anew",
        )
    n_given_up = len([row for row in rows if row.state == "waiting" and row.reason])
    if n_given_up:
        tell("gave up", f"{n_given_up} of {len(rows)}; the same command tries them again")


def tell(topic: str, *texts: str) -> None:
    """Print a topic beside the first text, and the other texts below it; lines of several threads stay whole."""
    lines = said_lines(topic, *texts)
    print("".join(f"{line.rstrip()}\n" for line in lines), end="", flush=True)


def own_folder(options: argparse.Namespace) -> list[str]:
    """The user's own folder of configurations, as arguments."""
    if options.config_dir is None:
        return []
    return ["--config-dir", str(Path(options.config_dir).absolute())]
