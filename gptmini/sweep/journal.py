"""The Optuna journal of a sweep. Several processes share the journal. Killing a process does not damage the journal."""

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
NAME = "sweep"  # the name of the study in the journal
# Names of user attributes of the study and of its trials.
DESCRIPTION = "described"  # the values that all runs of the sweep have in common
BEST = "best"  # the best validation of a trial's run
SECONDS = "seconds"  # how long the last start of a trial's run took
REASON = "reason"  # why a trial failed or was given up
GIVEN_UP = "given_up"  # how often a trial was given up
PRUNED_AT = "pruned_at"  # the step at which the pruner ended a trial's run
optuna.logging.set_verbosity(optuna.logging.WARNING)


class JournalLock(JournalFileOpenLock):
    """The lock of a sweep's journal.

    This lock replaces Optuna's lock, because Optuna's lock waits half a minute for a killed process. A killed process
    may leave an incomplete last line. Acquiring the lock removes this line, because the journal would be unreadable if
    another line followed. A thread that holds the lock may acquire the lock a second time.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._lock = FileLock(journal.with_name(".journal.lock"))

    def acquire(self) -> bool:
        """Acquire the lock."""
        self._lock.acquire()
        self._cut_torn_line()
        return True

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def __enter__(self) -> None:
        """Acquire the lock."""
        self.acquire()

    def __exit__(self, *error: object) -> None:
        """Release the lock."""
        self.release()

    def _cut_torn_line(self) -> None:
        with self._journal.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if file.read() not in (b"", b"\n"):
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)


class Journal:
    """The Optuna study of a sweep, in the file journal.log of the sweep's folder.

    Args:
        folder: the sweep's folder, which must exist.

    Raises UserError if the file journal.log is not the journal of a sweep.
    """

    def __init__(self, folder: Path) -> None:
        # Use an absolute path, so that a process can change its working directory and still write to the same file.
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
            raise UserError(f"{path} is not the journal of a sweep; move this file away") from None

    @property
    def description(self) -> dict[str, Any] | None:
        """The values that all runs of the sweep have in common, or None if the sweep is new."""
        return self.study.user_attrs.get(DESCRIPTION)

    def trials(self) -> list[FrozenTrial]:
        """Return all trials in the order of their numbers. A trial has the state RUNNING, COMPLETE, PRUNED or FAIL."""
        return self.study.get_trials(deepcopy=False)

    def note(self, number: int, **facts: object) -> None:
        """Set user attributes of a trial that has not ended."""
        for name, value in facts.items():
            self.storage.set_trial_user_attr(self.id_of(number), name, value)

    def id_of(self, number: int) -> int:
        """Return the id that the storage has given to a trial."""
        study = self.storage.get_study_id_from_name(NAME)
        return self.storage.get_trial_id_from_study_id_trial_number(study, number)
