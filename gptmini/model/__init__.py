"""The GPT: its configuration, its modules, its checkpoints and its Hugging Face form."""

from gptmini.model.config import GPTConfig
from gptmini.model.gpt import GPT, check_seed, new_gpt, next_token_loss, training_loss

__all__ = ["GPT", "GPTConfig", "check_seed", "new_gpt", "next_token_loss", "training_loss"]
