"""The trials of a sweep as a table: printed at each finish, and as table.csv in the sweep's folder."""

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from gptmini.files import replacing
from gptmini.sweep.space import SEED

LONGEST_CELL = 40  # characters of a value in the table; a longer one is cut
DONE = "done"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One trial of a sweep."""

    number: int
    state: str  # done, running, waiting, pruned or failed
    texts: dict[str, str]  # the values that are varied, by key
    loss: float | None = None  # lowest validation loss, in nats per token
    bits_per_byte: float | None = None  # at the same validation
    step: int | None = None  # of that validation
    seconds: float | None = None  # of the start that has ended the run; None while it runs
    run: str  # the run's folder
    reason: str | None = None  # why it failed, or waits for the next start of the sweep

    def figure(self, *, by_bits: bool) -> float | None:
        """What runs are compared by: bits per byte where their tokens differ, else the loss."""
        return self.bits_per_byte if by_bits else self.loss


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The trials that differ in nothing but their seed."""

    texts: dict[str, str]  # the values that are varied, by key, without the seed
    n_done: int
    n_trials: int
    mean: float | None  # of the figures of those that are done; None if none is
    spread: float | None  # standard deviation of the figures; None below two of them


def lines_of(rows: Sequence[Row], keys: Sequence[str], *, by_bits: bool) -> list[str]:
    """The table as lines of text, the best trial first; over several seeds the settings follow, the best mean first.

    Args:
        rows: of the trials that have begun.
        keys: that are varied, a column each.
        by_bits: whether trials are compared by bits per byte, because their tokens differ.
    """
    name = "bits/byte" if by_bits else "best loss"
    cells = [["trial", name, "step", "time", "state", *short_names(keys)]]
    for row in sorted(rows, key=lambda row: _rank(row.figure(by_bits=by_bits), row.number)):
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


def settings_of(rows: Sequence[Row], *, by_bits: bool) -> list[Setting]:
    """Trials that differ in their seed alone, taken together, the lowest mean first."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        texts = {key: text for key, text in row.texts.items() if key != SEED}
        groups.setdefault(tuple(texts.items()), []).append(row)

    settings = []
    for texts, group in groups.items():
        figures = [row.figure(by_bits=by_bits) for row in group if row.state == DONE]
        known = [figure for figure in figures if figure is not None]
        settings.append(
            Setting(
                texts=dict(texts),
                n_done=len(known),
                n_trials=len(group),
                mean=statistics.fmean(known) if known else None,
                spread=statistics.stdev(known) if len(known) > 1 else None,
            )
        )
    return sorted(settings, key=lambda setting: _rank(setting.mean, 0))


def best_of(rows: Sequence[Row], *, by_bits: bool) -> Row | None:
    """The best trial of those that are done; None if none is."""
    done = [row for row in rows if row.state == DONE]
    return min(done, key=lambda row: _rank(row.figure(by_bits=by_bits), row.number), default=None)


def write_csv(path: Path, rows: Sequence[Row], keys: Sequence[str]) -> None:
    """Write every trial in the order of their numbers, with all that is known of it."""
    figures = ["loss", "bits_per_byte", "step", "seconds"]
    columns = ["trial", "state", *figures, *keys, "run", "reason"]

    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in sorted(rows, key=lambda row: row.number):
        # The names of Row's fields are those of the columns, but for the trial's number.
        cells = vars(row) | row.texts | {"trial": row.number}
        if row.seconds is not None:
            cells["seconds"] = round(row.seconds, 1)
        writer.writerow(cells)

    with replacing(path) as file:
        file.write(text.getvalue().encode("utf-8"))


def short_names(keys: Sequence[str]) -> list[str]:
    """The last name of each dotted key, with as many names before it as tell the keys apart."""
    shortened = []
    for key in keys:
        names = key.split(".")
        others = [other.split(".") for other in keys if other != key]
        n_kept = 1
        while n_kept < len(names) and any(names[-n_kept:] == other[-n_kept:] for other in others):
            n_kept += 1
        shortened.append(".".join(names[-n_kept:]))
    return shortened


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The cells of a table as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _cut(value: str) -> str:
    """A value that fits into a column."""
    if len(value) <= LONGEST_CELL:
        return value
    return f"{value[: LONGEST_CELL - 1]}…"


def _rank(figure: float | None, number: int) -> tuple[bool, float, int]:
    """The place of a trial in the table, as a key to sort by: trials without a figure come last."""
    if figure is None:
        return (True, 0.0, number)
    return (False, figure, number)
