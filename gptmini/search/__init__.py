"""Sweeps: which values to try next by Optuna, a journal that outlives every process, and jobs by submitit."""

from gptmini.search.launchers import Launcher, LauncherSettings
from gptmini.search.space import Dimension
from gptmini.search.study import SearchSettings, Study, check_installed
from gptmini.search.trial_folder import Order, Result, TrialFolder

__all__ = [
    "Dimension",
    "Launcher",
    "LauncherSettings",
    "Order",
    "Result",
    "SearchSettings",
    "Study",
    "TrialFolder",
    "check_installed",
]
