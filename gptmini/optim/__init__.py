"""Optimizers with their parameter groups, and schedules as functions of the step."""

from gptmini.optim.groups import adamw, muon, set_learning_rate
from gptmini.optim.schedules import cosine, linear, trapezoid

__all__ = ["adamw", "cosine", "linear", "muon", "set_learning_rate", "trapezoid"]
