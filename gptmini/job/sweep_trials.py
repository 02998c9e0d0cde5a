"""The trials of a sweep. Trial n is the run SWEEP/n, and the files of this run are the only record of the trial.

The run's config.yaml contains the values of the trial, its checkpoint says how far it is, and its file 'state' says how
it ended. SWEEP/sweep.yaml contains the values to try. The sweep that trains trial n locks SWEEP/.locks/n.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import yaml
from filelock import FileLock, Timeout

from gptmini.report import Overview, overview_of
from gptmini.runs import RunStatus, is_run, is_training, read_config, read_status, write_status
from gptmini.sweep import Space, SweepSettings
from gptmini.system.errors import UserError
from gptmini.system.files import replacing
from gptmini.system.process import MISUSE
from gptmini.system.untrusted import read_yaml

FILE = "sweep.yaml"
# gptmini.data.reading.outputs recognises a sweep by this line.
HEADING = "# All runs of this sweep of gptmini have these values in common.\n"
ENDED = (0, MISUSE)  # exit codes of runs that are not started again


class Row(NamedTuple):
    """A trial whose run has a folder."""

    trial: int
    values: Mapping[str, str]  # of the varied keys; empty until the run has stored them
    run: Overview

    @property
    def exit_code(self) -> int | None:
        """The exit code of the run's last start. None while the run is training."""
        return None if self.run.status is None else self.run.status.exit_code

    @property
    def rank(self) -> float:
        """The bits per byte of a complete run as a sort key. Other runs come last."""
        return self.run.rank if self.exit_code == 0 else math.inf


class Trials:
    """The trials of a sweep, in a folder that is created if it does not exist."""

    def __init__(self, folder: Path, space: Space, settings: SweepSettings) -> None:
        self.folder = folder
        self.space = space
        self.sampler = settings.sampler_of(space)
        self.seed = settings.seed
        self.n_trials = settings.n_trials_of(space)
        self._ended: dict[int, Row] = {}  # the rows of ended trials, which do not change
        (folder / ".locks").mkdir(parents=True, exist_ok=True)
        (folder / "output").mkdir(exist_ok=True)

    def describe(self, description: Mapping[str, object]) -> None:
        """Write the common values of all runs to sweep.yaml. Raise UserError if an earlier start wrote others."""
        path = self.folder / FILE
        with FileLock(self.folder / ".locks" / FILE):
            if not path.exists():
                if any(is_run(self.folder / str(trial)) for trial in range(self.n_trials)):
                    raise UserError(f"{self.folder} has trials, but no {FILE}; add name=OTHER")
                text = yaml.safe_dump(dict(description), sort_keys=False, allow_unicode=True)
                with replacing(path) as file:
                    file.write(f"{HEADING}{text}".encode())

        before = read_yaml(path)
        for key in dict.fromkeys([*before, *description]):
            was = before.get(key, "(not given)")
            now = description.get(key, "(not given)")
            if was != now:
                raise UserError(
                    f"the sweep in {self.folder} has {key}={was}, got {now}; to start a new sweep, add name=OTHER"
                )

    def open_trials(self, left_out: Collection[int]) -> list[int]:
        """Return the trials that have not ended, without the trials that are left out."""
        return [n for n in range(self.n_trials) if n not in left_out and not self._has_ended(n)]

    def take(self, left_out: Collection[int]) -> tuple[int, FileLock] | None:
        """Lock the first open trial that no process trains. Return its number and its lock, or None."""
        for number in self.open_trials(left_out):
            lock = self._lock(number)
            if lock is not None:
                return number, lock
        return None

    def values_of(self, number: int) -> dict[str, str]:
        """Return the values of a trial by key, as on the command line. Draw them if its run has not stored them."""
        values = self._stored_values(number)
        if values:
            return values
        if self.sampler == "grid":
            return self.space.point(number)
        finished = []
        if self.sampler == "tpe":
            finished = [(row.values, row.rank) for row in self.rows() if row.rank < math.inf]
        return self.space.draw(self.seed, number, finished)

    def record(self, number: int, code: int, reason: str | None) -> None:
        """Record the exit code of a run, and the reason of a failure. A complete run stays complete.

        A run does this itself, unless it was killed or ended before it had a folder.
        """
        run = self.folder / str(number)
        status = read_status(run) or RunStatus(state="failed", step=0)
        if status.exit_code in (code, 0):
            return
        if code == 0:
            status = replace(status, state="done")
        run.mkdir(exist_ok=True)
        write_status(run, replace(status, exit_code=code, reason=reason))

    def rows(self) -> list[Row]:
        """Return the rows of all trials whose runs have a folder."""
        rows = [self._row(number) for number in range(self.n_trials)]
        return [row for row in rows if row is not None]

    def _row(self, number: int) -> Row | None:
        if number in self._ended:
            return self._ended[number]
        folder = self.folder / str(number)
        status = read_status(folder)
        if is_run(folder):
            run = overview_of(folder)
        elif status is not None:
            run = Overview(folder=folder, state=status.state, changed=[], status=status)
        else:
            return None  # the run has no folder yet

        # Only the run knows the values that the sampler 'tpe' has drawn, because they depend on the earlier trials.
        values_of = self._stored_values if self.sampler == "tpe" else self.values_of
        row = Row(number, values_of(number), run)
        if run.status is not None and row.exit_code in ENDED:
            # The process of the run may take a second to end.
            row = row._replace(run=replace(run, state=run.status.state))
            self._ended[number] = row
        return row

    def _stored_values(self, number: int) -> dict[str, str]:
        run = self.folder / str(number)
        if not is_run(run):
            return {}
        _, typed = read_config(run)
        values = dict(line.split("=", 1) for line in typed if "=" in line)
        return {key: values[key] for key in self.space.dimensions}

    def _has_ended(self, number: int) -> bool:
        status = read_status(self.folder / str(number))
        return status is not None and status.exit_code in ENDED

    def _lock(self, number: int) -> FileLock | None:
        """Lock an open trial. Return None if the trial has ended or another process trains it."""
        lock = FileLock(self.folder / ".locks" / str(number))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None
        # The run may be training although the sweep that started it was killed.
        if is_training(self.folder / str(number)) or self._has_ended(number):
            lock.release()
            return None
        return lock
