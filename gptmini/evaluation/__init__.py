"""How well a model predicts held-out text: nats per token, perplexity, bits per byte, and how sure the figures are."""

from gptmini.evaluation.score import Evaluation, Tally, evaluate, token_losses

__all__ = ["Evaluation", "Tally", "evaluate", "token_losses"]
