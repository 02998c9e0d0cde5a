"""The table of a sweep: a row for each trial, the best trial first, and the means over the seeds."""

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from math import inf
from operator import attrgetter
from statistics import fmean, stdev
from typing import Any

from gptmini.configuration.request import key_of
from gptmini.console.printing import print_topic
from gptmini.console.table import aligned
from gptmini.job.sweep_trials import ENDED, Row, Trials
from gptmini.sweep import SEED
from gptmini.system.files import replacing
from gptmini.system.process import MISUSE


def show_table(trials: Trials, printed: Sequence[Row] = ()) -> list[Row]:
    """Print the table and write it to table.csv, if its rows differ from those that were printed. Return its rows."""
    rows = trials.rows()
    if rows == printed:
        return rows

    keys = list(trials.space.dimensions)
    columns = ["trial", "state", "loss", "bits_per_byte", "step", "seconds", *keys, "reason"]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*columns, "run"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(_cells, rows))
    with replacing(trials.folder / "table.csv") as file:
        file.write(text.getvalue().encode("utf-8"))

    lines = _lines(columns, [_cells(row) for row in sorted(rows, key=attrgetter("rank"))])
    if SEED in keys:
        others = [key for key in keys if key != SEED]
        columns = ["mean loss", "spread", "bits_per_byte", "seeds", *others]
        lines += ["", *_lines(columns, means_of(rows))]
    print_topic("sweep", *lines)
    return rows


def print_ending(trials: Trials, rows: Sequence[Row], arguments: Sequence[str]) -> None:
    """Print the best trial, the command that trains it with `arguments`, and how many trials failed or are open."""
    best = min(rows, key=attrgetter("rank"), default=None)
    if best is not None and best.rank < inf:
        print_topic(
            "best",
            f"val loss {best.run.loss:.4f}, {best.run.bits_per_byte:.4f} bits per byte, "
            f"step {best.run.best_step}: trial {best.trial}, {best.run.folder}",
        )
        # A good result of a single seed may be luck, so the command has the setting with the best mean, without a seed.
        setting = means_of(rows)[0]
        values = {key: setting[key] for key in best.values if key != SEED}
        # If the command repeated the name of the sweep, the new run would be created among the sweep's runs.
        overrides = [line for line in trials.space.overrides(values) if key_of(line) != "name"]
        print_topic("train", shlex.join(["gptmini", "train", *overrides, *arguments]))

    n_failed = sum(row.exit_code == MISUSE for row in rows)
    if n_failed:
        print_topic(
            "failed",
            f"{n_failed} of {trials.n_trials} trials; gptmini does not retry them; for a new sweep, add name=OTHER",
        )
    n_open = trials.n_trials - sum(row.exit_code in ENDED for row in rows)
    if n_open:
        print_topic(
            "open", f"{n_open} of {trials.n_trials} trials; run the same command to train them"
        )


def means_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the mean and the standard deviation of each setting over its complete runs. The best mean comes first."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        if row.rank < inf:
            setting = tuple(item for item in row.values.items() if item[0] != SEED)
            groups.setdefault(setting, []).append(row)

    means: list[dict[str, Any]] = []
    for setting, group in groups.items():
        losses = [row.run.loss for row in group if row.run.loss is not None]
        means.append(
            {
                "mean loss": fmean(losses),
                "spread": stdev(losses) if len(losses) > 1 else None,
                "bits_per_byte": fmean(row.rank for row in group),
                "seeds": len(group),
                **dict(setting),
            }
        )
    return sorted(means, key=lambda mean: mean["bits_per_byte"])


def _cells(row: Row) -> dict[str, Any]:
    status = row.run.status
    return {
        "trial": row.trial,
        "state": row.run.state,
        "loss": row.run.loss,
        "bits_per_byte": row.run.bits_per_byte,
        "step": row.run.best_step,
        "seconds": None if status is None else status.seconds,
        **row.values,
        "reason": None if status is None else status.reason,
        "run": row.run.folder,
    }


def _lines(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [list(columns)]
    for row in rows:
        values = [row.get(name) for name in columns]
        texts = [f"{value:.5g}" if isinstance(value, float) else value for value in values]
        lines.append(["" if text is None else str(text) for text in texts])
    return aligned(lines)
