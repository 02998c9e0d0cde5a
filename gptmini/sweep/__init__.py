"""Sweeps: workers take trials from one Optuna journal and train a run for each trial.

This module does not import Optuna, because importing Optuna is slow. Only the modules 'journal', 'study', 'pruned' and
'worker' need Optuna.
"""

from gptmini.sweep.space import SEED, Dimension, Space, SweepSettings
from gptmini.sweep.table import Row, best_of, place_of, settings_of, write_csv

__all__ = [
    "SEED",
    "Dimension",
    "Row",
    "Space",
    "SweepSettings",
    "best_of",
    "place_of",
    "settings_of",
    "write_csv",
]
