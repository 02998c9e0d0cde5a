"""The table of a sweep: a row for each trial, the best trial, and means over seeds."""

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gptmini.files import replacing
from gptmini.sweep.space import SEED

DONE = "done"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One trial of a sweep."""

    number: int
    state: str  # done, running, waiting, pruned or failed
    texts: dict[str, str]  # values of the varied keys
    loss: float | None = None  # lowest validation loss, in nats per token
    bits_per_byte: float | None = None  # at the same validation
    step: int | None = None  # the step of the same validation
    seconds: float | None = None  # how long the last start took; None while the trial has no result
    run: str  # the run's folder
    reason: str | None = None  # why it failed or was given up

    def figure(self, *, by_bits: bool) -> float | None:
        """Return the figure that runs are compared by: bits per byte if their tokens differ, otherwise the loss."""
        return self.bits_per_byte if by_bits else self.loss


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Trials that differ only in their seed."""

    texts: dict[str, str]  # values of the varied keys, without the seed
    n_done: int
    n_trials: int
    mean: float | None  # mean figure of the done trials; None if no trial is done
    spread: float | None  # standard deviation of the figures; None for fewer than 2


def settings_of(rows: Sequence[Row], *, by_bits: bool) -> list[Setting]:
    """Group the trials that differ only in their seed; return the groups, lowest mean first."""
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
    return sorted(settings, key=lambda setting: place_of(setting.mean, 0))


def best_of(rows: Sequence[Row], *, by_bits: bool) -> Row | None:
    """Return the best done trial, or None if no trial is done."""
    done = [row for row in rows if row.state == DONE]
    return min(
        done, key=lambda row: place_of(row.figure(by_bits=by_bits), row.number), default=None
    )


def write_csv(path: Path, rows: Sequence[Row], keys: Sequence[str]) -> None:
    """Write all trials as CSV, in the order of their numbers."""
    figures = ["loss", "bits_per_byte", "step", "seconds"]
    columns = ["trial", "state", *figures, *keys, "run", "reason"]

    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in sorted(rows, key=lambda row: row.number):
        # Columns have the names of Row's fields, except the trial's number.
        cells = vars(row) | row.texts | {"trial": row.number}
        if row.seconds is not None:
            cells["seconds"] = round(row.seconds, 1)
        writer.writerow(cells)

    with replacing(path) as file:
        file.write(text.getvalue().encode("utf-8"))


def place_of(figure: float | None, number: int) -> tuple[bool, float, int]:
    """Return a sort key: trials with a lower figure first, trials without a figure last."""
    if figure is None:
        return (True, 0.0, number)
    return (False, figure, number)
