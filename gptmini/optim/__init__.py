"""Optimizers with their parameter groups, and schedules as functions of the step."""

from gptmini.optim.groups import adamw, leave_out, muon, set_learning_rate
from gptmini.optim.schedules import cosine, linear, trapezoid

__all__ = ["adamw", "cosine", "leave_out", "linear", "muon", "set_learning_rate", "trapezoid"]
