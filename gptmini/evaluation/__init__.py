"""How well a model predicts held-out text: nats per token, perplexity, bits per byte, and how sure the figures are."""

from gptmini.evaluation.packed import Evaluation, evaluate, sum_of_nats, token_losses

__all__ = ["Evaluation", "evaluate", "sum_of_nats", "token_losses"]
