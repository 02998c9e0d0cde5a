"""Sweeps: workers that take trials from one journal of Optuna's, and train a run for each.

Optuna is not imported here, because it takes a while: only journal, study, pruned and worker need it.
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
