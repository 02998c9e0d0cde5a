"""The trials of a sweep. Workers take one trial after another.

A trial is one line of the journal, so the journal never has only some values of a trial. A worker and its run hold
the lock of their trial. The kernel releases the lock after the processes of the worker and of the run have ended.
"""

import fcntl
import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from gptmini.runs import is_training
from gptmini.sweep.journal import BEST, DESCRIPTION, GIVEN_UP, REASON, SECONDS, Journal
from gptmini.sweep.space import Dimension, Space, SweepSettings
from gptmini.sweep.table import DONE, Row
from gptmini.user_error import UserError

# Names of the states of ended trials in the table.
STATES = {TrialState.COMPLETE: DONE, TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


@dataclass(frozen=True)
class ClaimedTrial:
    """A trial that this worker has locked.

    The lock ends when the worker calls release(), or after the processes of the worker and of the run have ended.
    """

    number: int
    texts: dict[str, str]  # values by key, as on the command line
    lock: int  # file descriptor of the lock file; the run of the trial inherits the descriptor

    def release(self) -> None:
        """Unlock the trial."""
        os.close(self.lock)


class Sweep(Journal):
    """The trials of a sweep. Workers take one trial after another.

    Args:
        folder: the sweep's folder, which must exist.
        space: the varied keys and their values.
        settings: how values are chosen.

    Raises UserError if the journal is damaged.
    """

    def __init__(self, folder: Path, space: Space, settings: SweepSettings) -> None:
        super().__init__(folder)
        self.folder = folder
        self.space = space
        self.settings = settings
        self.sampler = settings.sampler_of(space)
        self.n_trials = settings.n_trials_of(space)
        # A new start of the sweep retries the trials that earlier starts gave up. If this start gives up such a trial
        # too, the workers of this start do not retry the trial.
        self._given_up_before = [trial.user_attrs.get(GIVEN_UP, 0) for trial in self.trials()]

    def describe(self, description: Mapping[str, object]) -> None:
        """Write the values that all runs have in common to the journal, by key.

        If the journal already has such values, compare the values instead. Raises UserError if a value is different.
        """
        with self.lock:
            before = self.description
            if before is None:
                self.study.set_user_attr(DESCRIPTION, dict(description))
                return
        for key in dict.fromkeys([*before, *description]):
            was = before.get(key)
            now = description.get(key)
            if was != now:
                raise UserError(
                    f"the sweep in {self.folder} has {key}={was}, got {now}; to start a new sweep, add name=OTHER"
                )

    def take(self) -> ClaimedTrial | None:
        """Lock a trial and return it, or return None if no trial can be taken now. Interrupted trials come first."""
        with self.lock:
            trials = self.trials()
            for trial in trials:
                if self._is_open(trial):
                    lock = self._lock_trial(trial.number)
                    if lock is not None:
                        self.note(trial.number, **{REASON: None})
                        return ClaimedTrial(trial.number, self.texts_of(trial), lock)

            if len(trials) >= self.n_trials:
                return None
            # A worker that died before it added this trial may still hold the lock for a moment.
            lock = self._lock_trial(len(trials))
            if lock is None:
                return None
            self.study.add_trial(self._new_trial(len(trials)))
            trial = self.trials()[-1]
            return ClaimedTrial(trial.number, self.texts_of(trial), lock)

    def is_over(self) -> bool:
        """Return whether every trial has ended or was given up."""
        trials = self.trials()
        return len(trials) >= self.n_trials and not any(map(self._is_open, trials))

    def is_busy(self, number: int) -> bool:
        """Return whether a process is training the run of the trial now."""
        with self.lock:
            lock = self._lock_trial(number)
            if lock is None:
                return True
            os.close(lock)
            return False

    def is_complete(self) -> bool:
        """Return whether every trial is done or pruned."""
        trials = self.trials()
        good = (TrialState.COMPLETE, TrialState.PRUNED)
        return len(trials) >= self.n_trials and all(trial.state in good for trial in trials)

    def run_of(self, number: int) -> Path:
        """Return the folder of a trial's run."""
        return self.folder / str(number)

    def rows(self) -> list[Row]:
        """Return the rows of the table. Each trial that has started has one row."""
        return [self._row(trial) for trial in self.trials()]

    def _row(self, trial: FrozenTrial) -> Row:
        state = STATES.get(trial.state)
        if state is None:
            state = "running" if self.is_busy(trial.number) else "waiting"
        best = trial.user_attrs.get(BEST) or {}
        return Row(
            number=trial.number,
            state=state,
            texts=self.texts_of(trial),
            **best,
            seconds=trial.user_attrs.get(SECONDS),
            run=str(self.run_of(trial.number)),
            reason=trial.user_attrs.get(REASON),
        )

    def texts_of(self, trial: FrozenTrial) -> dict[str, str]:
        """Return the values of a trial by key, as on the command line."""
        return {
            dimension.key: dimension.text_of(trial.params[dimension.key])
            for dimension in self.space.dimensions
        }

    def finish(self, number: int, value: float) -> None:
        """Record the result of a completed trial."""
        self.study.tell(number, value)

    def prune(self, number: int) -> None:
        """Record that the pruner ended a trial."""
        self.study.tell(number, state=TrialState.PRUNED)

    def fail(self, number: int, reason: str) -> None:
        """Record that a trial failed, and the reason."""
        self.note(number, **{REASON: reason})
        self.study.tell(number, state=TrialState.FAIL)

    def give_up(self, number: int, reason: str) -> None:
        """Record that a trial was given up, and the reason. The next start of the sweep retries the trial."""
        n_times = self.trials()[number].user_attrs.get(GIVEN_UP, 0)
        self.note(number, **{REASON: reason, GIVEN_UP: n_times + 1})

    def _is_open(self, trial: FrozenTrial) -> bool:
        """Return whether a trial has not ended and was not given up during this start of the sweep."""
        known = self._given_up_before
        n_before = known[trial.number] if trial.number < len(known) else 0
        n_times = trial.user_attrs.get(GIVEN_UP, 0)
        return trial.state is TrialState.RUNNING and n_times == n_before

    def _lock_trial(self, number: int) -> int | None:
        """Lock a trial. Return the descriptor of the lock file, or None if a process is training the trial's run."""
        folder = self.folder / ".locks"
        folder.mkdir(exist_ok=True)
        descriptor = os.open(folder / str(number), os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_training(self.run_of(number)):
                return descriptor
        os.close(descriptor)
        return None

    def _new_trial(self, number: int) -> FrozenTrial:
        """Return a new trial. The seed of the sweep and the number of the trial determine the random values.

        Each value is drawn with a seed of its own. If all samplers had the same seed, every worker would draw the same
        values.
        """
        distributions = {
            dimension.key: _distribution_of(dimension) for dimension in self.space.dimensions
        }
        values: dict[str, Any] = {}
        if self.sampler == "grid":
            values.update(self.space.point(number))
        else:
            kind = TPESampler if self.sampler == "tpe" else RandomSampler
            placeholder = create_trial(state=TrialState.RUNNING)
            for dimension in self.space.dimensions:
                sampler = kind(seed=_seed_of(self.settings.seed, number, dimension.key))
                value = sampler.sample_independent(
                    self.study,
                    placeholder,
                    dimension.key,
                    distributions[dimension.key],
                )
                values[dimension.key] = value if dimension.texts else dimension.rounded(value)

        return create_trial(
            state=TrialState.RUNNING,
            params=values,
            distributions=distributions,
        )


def _distribution_of(dimension: Dimension) -> BaseDistribution:
    """Return the distribution from which Optuna draws the values of a dimension."""
    if not dimension.is_interval:
        return CategoricalDistribution(dimension.texts)
    if dimension.is_integer:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.is_log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.is_log)


def _seed_of(seed: int, number: int, key: str) -> int:
    """Return the seed of the random value that a trial has for a key."""
    digest = hashlib.sha256(f"{seed}/{number}/{key}".encode()).digest()
    return int.from_bytes(digest[:4], "little")
