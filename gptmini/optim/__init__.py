"""Optimizers with their parameter groups, and schedules as functions of the step."""

from gptmini.optim.groups import adamw, set_learning_rate

__all__ = ["adamw", "set_learning_rate"]
