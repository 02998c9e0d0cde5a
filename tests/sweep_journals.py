"""The trials of a sweep as Optuna itself reads them, with a storage of its own."""

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend


def trials_of(folder):
    """All trials in the journal of a sweep's folder."""
    storage = JournalStorage(JournalFileBackend(str(folder / "journal.log")))
    return optuna.load_study(study_name="sweep", storage=storage).trials
