"""Print the console output of gptmini sweep: the table of its trials, and at the end the best trial."""

import shlex
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.configuration.overrides import key_of
from gptmini.job.printing import print_topic
from gptmini.report.tables import aligned
from gptmini.sweep import SEED, Row, best_of, place_of, settings_of, write_csv

if TYPE_CHECKING:
    from gptmini.sweep.study import Sweep

LONGEST_CELL = 40  # maximum number of characters in a cell; longer values are cut


class Table:
    """The table of a sweep. Whenever the table changes, it is printed and written to table.csv."""

    def __init__(self) -> None:
        self._printed: list[Row] = []

    def show(self, sweep: "Sweep") -> list[Row]:
        """Read the trials from the journal, print the table if it changed, and return its rows."""
        rows = sweep.rows()
        if rows != self._printed:
            self._printed = rows
            keys = sweep.space.keys
            write_csv(sweep.folder / "table.csv", rows, keys)
            print_topic("sweep", *table_of(rows, keys, by_bits=sweep.space.by_bits))
        return rows


def print_ending(sweep: "Sweep", rows: Sequence[Row], config_dir: str | None) -> None:
    """Print the best trial, the command that trains it, and the number of failed and given-up trials."""
    best = best_of(rows, by_bits=sweep.space.by_bits)
    if best is not None:
        texts = best.texts
        trial = f"trial {best.number}, {best.run}"
        if SEED in texts:
            # A good result of a single seed may be luck, so the command below does not set the seed.
            texts = settings_of(rows, by_bits=sweep.space.by_bits)[0].texts
            values = " ".join(f"{key}={text}" for key, text in texts.items())
            lowest = f"{values} has the lowest mean over its seeds"
            print_topic("setting", lowest if values else "only the seed varies")
        figures = [f"val loss {best.loss:.4f}", f"{best.bits_per_byte:.4f} bits per byte"]
        if sweep.space.by_bits:
            figures.reverse()
        print_topic("best", f"{', '.join(figures)}, step {best.step}: {trial}")
        # If the command repeated the name of the sweep, the new run would be created among the sweep's runs.
        overrides = [line for line in sweep.space.overrides(texts) if key_of(line) != "name"]
        print_topic(
            "train", shlex.join(["gptmini", "train", *overrides, *config_dir_arguments(config_dir)])
        )

    n_failed = len([row for row in rows if row.state == "failed"])
    if n_failed:
        print_topic(
            "failed",
            f"{n_failed} of {len(rows)} trials; gptmini does not retry them; to start a new sweep, add name=OTHER",
        )
    n_given_up = len([row for row in rows if row.state == "waiting" and row.reason])
    if n_given_up:
        print_topic(
            "gave up", f"{n_given_up} of {len(rows)} trials; run the same command to retry them"
        )


def config_dir_arguments(config_dir: str | None) -> list[str]:
    """Return --config-dir with the user's own folder of configurations, as arguments."""
    return [] if config_dir is None else ["--config-dir", str(Path(config_dir).absolute())]


def table_of(rows: Sequence[Row], keys: Sequence[str], *, by_bits: bool) -> list[str]:
    """Return the table as lines of text. The best trial is first.

    If the seed varies, a second table follows. The second table shows the mean loss of each setting over its seeds, and
    the best mean is first.

    Args:
        rows: the trials that have started.
        keys: the varied keys. Each key is a column of the table.
        by_bits: whether the trials are compared by bits per byte, because the trials have different tokens.
    """
    name = "bits/byte" if by_bits else "best loss"
    cells = [["trial", name, "step", "time", "state", *short_names(keys)]]
    for row in sorted(rows, key=lambda row: place_of(row.figure(by_bits=by_bits), row.number)):
        state = row.state if row.reason is None else f"{row.state}: {row.reason}"
        cells.append(
            [
                str(row.number),
                _number(row.figure(by_bits=by_bits)),
                "" if row.step is None else str(row.step),
                "" if row.seconds is None else str(timedelta(seconds=round(row.seconds))),
                _cut(state),
                *(_cut(row.texts[key]) for key in keys),
            ]
        )
    lines = aligned(cells)

    if SEED in keys:
        others = [key for key in keys if key != SEED]
        cells = [[f"mean {name}", "spread", "seeds", *short_names(others)]]
        for setting in settings_of(rows, by_bits=by_bits):
            cells.append(
                [
                    _number(setting.mean),
                    _number(setting.spread),
                    f"{setting.n_done} of {setting.n_trials}",
                    *(_cut(setting.texts[key]) for key in others),
                ]
            )
        lines += ["", *aligned(cells)]
    return lines


def short_names(keys: Sequence[str]) -> list[str]:
    """Return the shortest end of each dotted key that no other key has: optimizer.lr becomes lr."""
    shortened = []
    for key in keys:
        names = key.split(".")
        others = [other.split(".") for other in keys if other != key]
        n_kept = 1
        while n_kept < len(names) and any(names[-n_kept:] == other[-n_kept:] for other in others):
            n_kept += 1
        shortened.append(".".join(names[-n_kept:]))
    return shortened


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _cut(value: str) -> str:
    """Return a value cut to the width of a cell."""
    if len(value) <= LONGEST_CELL:
        return value
    return f"{value[: LONGEST_CELL - 1]}…"
