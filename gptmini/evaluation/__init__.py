"""Evaluate a model on held-out text: loss, perplexity and bits per byte, with confidence intervals."""

from gptmini.evaluation.score import Evaluation, Tally, evaluate, token_losses

__all__ = ["Evaluation", "Tally", "evaluate", "token_losses"]
