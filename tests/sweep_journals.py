"""Read the trials of a sweep with Optuna's own journal storage."""

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend


def trials_of(folder):
    """Return all trials in the journal of a sweep's folder."""
    storage = JournalStorage(JournalFileBackend(str(folder / "journal.log")))
    return optuna.load_study(study_name="sweep", storage=storage).trials
