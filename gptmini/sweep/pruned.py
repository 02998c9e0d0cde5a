"""The trial of a run that a pruner may end. The run reports the result of each validation to its trial."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner
from optuna.trial import FrozenTrial, TrialState

from gptmini.sweep.journal import JOURNAL, PRUNED_AT, Journal


class PrunedTrial:
    """The trial of the run that this process trains. The trial receives the validations of the run.

    Args:
        run: the folder of the run. This folder is next to the journal of the sweep. The name of the folder is the
            number of the trial.
    """

    def __init__(self, run: Path) -> None:
        self._journal = Journal(run.absolute().parent)
        self._number = int(run.absolute().name)
        description = self._journal.description
        assert description is not None  # the sweep writes the description before its first trial
        self.by_bits: bool = description["by_bits"]  # whether runs are compared by bits per byte
        self._pruner = _pruner_of(description)

    @staticmethod
    def is_one(run: Path) -> bool:
        """Return whether a run belongs to a trial. A copy of the run in another folder does not belong to a trial."""
        return run.name.isdecimal() and (run.absolute().parent / JOURNAL).is_file()

    def report(self, step: int, value: float) -> bool:
        """Report the result of a validation. Return True if the run must end because it is worse than other runs."""
        trial = self._trial()
        if trial.state is not TrialState.RUNNING:
            return False
        # A run that resumes from a checkpoint repeats the validations after this checkpoint. Do not record them twice.
        if step not in trial.intermediate_values:
            id_of_trial = self._journal.id_of(self._number)
            self._journal.storage.set_trial_intermediate_value(id_of_trial, step, value)
        if not self._pruner.prune(self._journal.study, self._trial()):
            return False
        self._journal.note(self._number, **{PRUNED_AT: step})
        return True

    def _trial(self) -> FrozenTrial:
        return self._journal.trials()[self._number]


def _pruner_of(description: Mapping[str, Any]) -> BasePruner:
    """Return the pruner that the description of a sweep names."""
    warmup = description["sweep.pruner_warmup"]
    if description["sweep.pruner"] == "median":
        return MedianPruner(
            n_startup_trials=description["sweep.pruner_startup"],
            n_warmup_steps=warmup,
        )
    min_resource = max(1, warmup)
    return HyperbandPruner(
        min_resource=min_resource,
        max_resource=max(min_resource, description["max_steps"]),
    )
