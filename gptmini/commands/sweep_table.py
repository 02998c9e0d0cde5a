"""The trials of a sweep as a table: printed at each finish, and as table.csv in the sweep's folder."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gptmini.commands.multirun import aligned, cut, short_names
from gptmini.files import replacing


@dataclass(frozen=True, kw_only=True)
class Row:
    """One trial of a sweep."""

    number: int
    state: str  # done, running, waiting, pruned or failed
    texts: dict[str, str]  # the values that are varied, by key
    loss: float | None = None  # lowest validation loss so far, in nats per token
    bits_per_byte: float | None = None  # at the same validation
    step: int | None = None  # of that validation
    seconds: float | None = None  # of the start that has ended the run; None while it runs
    run: str | None = None  # the run's folder
    reason: str | None = None  # why it failed, or waits for the next start of the sweep


def lines_of(rows: Sequence[Row], keys: Sequence[str], *, by_bits: bool) -> list[str]:
    """The table as lines of text, the best trial first.

    Args:
        rows: of the trials that have begun.
        keys: that are varied, a column each.
        by_bits: whether trials are compared by bits per byte, because their tokens differ.
    """
    from gptmini.training.monitoring.console import duration

    figure = "bits/byte" if by_bits else "best loss"
    cells = [["trial", figure, "step", "time", "state", *short_names(keys).values()]]
    for row in sorted(rows, key=lambda row: _rank(row, by_bits=by_bits)):
        value = row.bits_per_byte if by_bits else row.loss
        state = row.state if row.reason is None else f"{row.state}: {row.reason}"
        cells.append(
            [
                str(row.number),
                "" if value is None else f"{value:.4f}",
                "" if row.step is None else str(row.step),
                "" if row.seconds is None else duration(row.seconds),
                cut(state),
                *(cut(row.texts[key]) for key in keys),
            ]
        )
    return aligned(cells)


def best_of(rows: Sequence[Row], *, by_bits: bool) -> Row | None:
    """The best trial of those that are done; None if none is."""
    done = [row for row in rows if row.state == "done"]
    return min(done, key=lambda row: _rank(row, by_bits=by_bits), default=None)


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


def _rank(row: Row, *, by_bits: bool) -> tuple[bool, float, int]:
    """The place of a trial in the table, as a key to sort by: trials without a value come last."""
    value = row.bits_per_byte if by_bits else row.loss
    if value is None:
        return (True, 0.0, row.number)
    return (False, value, row.number)
