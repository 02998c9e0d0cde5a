"""Sweeps: their settings, and the values that they try. Optuna is imported only on use, because it is slow."""

from gptmini.sweep.space import SEED, Space, SweepSettings

__all__ = ["SEED", "Space", "SweepSettings"]
