"""The GPT: its configuration, its modules, its loss and its checkpoints."""

from gptmini.model.config import GPTConfig
from gptmini.model.gpt import GPT, check_seed, new_gpt
from gptmini.model.loss import next_token_loss, rounded_training_loss, training_loss

__all__ = [
    "GPT",
    "GPTConfig",
    "check_seed",
    "new_gpt",
    "next_token_loss",
    "rounded_training_loss",
    "training_loss",
]
