"""The table of a sweep. It has a row for each trial, and shows the best trial and the means over seeds."""

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
    texts: dict[str, str]  # the values of the varied keys, by key
    loss: float | None = None  # lowest validation loss, in nats per token
    bits_per_byte: float | None = None  # bits per byte at the same validation
    step: int | None = None  # the step of the same validation
    # Seconds that the last start of the run took; None while the trial has no result.
    seconds: float | None = None
    run: str  # the run's folder
    reason: str | None = None  # why the trial failed or was given up

    def figure(self, *, by_bits: bool) -> float | None:
        """Return the number by which runs are compared.

        This number is bits per byte if by_bits is True, because the tokens of the runs may differ. Otherwise it is the
        loss.
        """
        return self.bits_per_byte if by_bits else self.loss


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A group of trials that differ only in their seed."""

    texts: dict[str, str]  # values of the varied keys, without the seed
    n_done: int
    n_trials: int
    mean: float | None  # mean loss or bits per byte of the done trials; None if no trial is done
    # Standard deviation over the done trials; None if fewer than 2 trials are done.
    spread: float | None


def settings_of(rows: Sequence[Row], *, by_bits: bool) -> list[Setting]:
    """Return the groups of trials that differ only in their seed. The group with the lowest mean comes first."""
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
    """Write all trials to a CSV file, in the order of their numbers."""
    figures = ["loss", "bits_per_byte", "step", "seconds"]
    columns = ["trial", "state", *figures, *keys, "run", "reason"]

    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in sorted(rows, key=lambda row: row.number):
        # Columns have the names of the fields of Row, except that the field 'number' has the column 'trial'.
        cells = vars(row) | row.texts | {"trial": row.number}
        if row.seconds is not None:
            cells["seconds"] = round(row.seconds, 1)
        writer.writerow(cells)

    with replacing(path) as file:
        file.write(text.getvalue().encode("utf-8"))


def place_of(figure: float | None, number: int) -> tuple[bool, float, int]:
    """Return a sort key for a trial. Trials with a lower figure come first. Trials without a figure come last.

    The figure is the loss or the bits per byte of the trial.
    """
    if figure is None:
        return (True, 0.0, number)
    return (False, figure, number)
