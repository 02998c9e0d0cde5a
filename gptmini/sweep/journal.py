"""Optuna's journal of a sweep, which any number of processes share and which outlives a kill of each."""

import os
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock
from optuna.samplers import RandomSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial

from gptmini.user_error import UserError

JOURNAL = "journal.log"  # in the sweep's folder
NAME = "sweep"  # of the study in its journal
# Notes on the study and on its trials, which the journal keeps beside Optuna's own.
DESCRIPTION = "described"  # what holds for the whole sweep
BEST = "best"  # the best validation of a trial's run
SECONDS = "seconds"  # of the start that has ended a trial's run
REASON = "reason"  # why a trial has failed, or was given up
GIVEN_UP = "given_up"  # how often a trial was given up
PRUNED_AT = "pruned_at"  # the step at which a trial's run was told to end
optuna.logging.set_verbosity(optuna.logging.WARNING)


class JournalLock(JournalFileOpenLock):
    """The lock of a sweep's journal, in the place of Optuna's, which waits half a minute for a process that was killed.

    Whoever takes the lock cuts off a last line without an end, as a killed process leaves it: with another line behind
    it the journal could not be read. A thread that has the lock may take it again.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._lock = FileLock(journal.with_name(".journal.lock"))

    def acquire(self) -> bool:
        """Wait for the lock."""
        self._lock.acquire()
        self._cut_torn_line()
        return True

    def release(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def __enter__(self) -> None:
        """Wait for the lock."""
        self.acquire()

    def __exit__(self, *error: object) -> None:
        """Give the lock back."""
        self.release()

    def _cut_torn_line(self) -> None:
        with self._journal.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if file.read() not in (b"", b"\n"):
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)


class Journal:
    """Optuna's study of a sweep, in the file journal.log of the sweep's folder.

    Args:
        folder: of the sweep, which is there.

    Raises UserError: the file is no journal.
    """

    def __init__(self, folder: Path) -> None:
        # With a relative path, a process that changes its folder would write elsewhere.
        path = folder.absolute() / JOURNAL
        path.touch()
        self.lock = JournalLock(path)

        try:
            with self.lock:
                self.storage = JournalStorage(JournalFileBackend(str(path), lock_obj=self.lock))
                self.study = optuna.create_study(
                    storage=self.storage,
                    study_name=NAME,
                    direction="minimize",
                    sampler=RandomSampler(),
                    load_if_exists=True,
                )
        except (ValueError, KeyError, TypeError, AssertionError):
            raise UserError(f"{path} is not the journal of a sweep; move it away") from None

    @property
    def description(self) -> dict[str, Any] | None:
        """What holds for the whole sweep; None for a sweep that begins."""
        return self.study.user_attrs.get(DESCRIPTION)

    def trials(self) -> list[FrozenTrial]:
        """All trials in the order of their numbers; state is RUNNING, COMPLETE, PRUNED or FAIL."""
        return self.study.get_trials(deepcopy=False)

    def note(self, number: int, **facts: object) -> None:
        """Write facts on a trial that has not ended."""
        for name, value in facts.items():
            self.storage.set_trial_user_attr(self.id_of(number), name, value)

    def id_of(self, number: int) -> int:
        """The id by which the storage knows a trial."""
        study = self.storage.get_study_id_from_name(NAME)
        return self.storage.get_trial_id_from_study_id_trial_number(study, number)
