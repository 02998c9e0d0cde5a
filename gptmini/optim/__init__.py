"""Optimizers with their parameter groups, and schedules as functions of the step."""

from gptmini.optim.groups import adamw, muon, set_learning_rate

__all__ = ["adamw", "muon", "set_learning_rate"]
