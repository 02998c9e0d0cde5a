"""Text that the model writes at every validation."""

import math

import lightning as L

from gptmini.checks import UserError, whole
from gptmini.generation import Rules, generate_stream, prompt_ids
from gptmini.tokenizer import END_OF_TEXT, Tokenizer
from gptmini.training.module import GPTModule
from gptmini.training.monitoring.logger import takers


class Samples(L.Callback):
    """Writes samples of text at every validation, always from the same prompts and random streams."""

    def __init__(self, tokenizer: Tokenizer, prompts: list[str], seed: int, **rules: float | None) -> None:
        """Take the arguments of generate_stream, rules being fields of Rules; an empty prompt starts a document.

        Raises UserError: an argument of the wrong type or out of range, or a prompt that cannot be encoded.
        """
        texts = isinstance(prompts, list) and prompts and all(type(prompt) is str for prompt in prompts)
        if not texts:
            raise UserError(f"prompts must be a list of texts, got {prompts!r}")
        whole("seed", seed, least=None)
        whole("max_new_tokens", Rules(**rules).max_new_tokens)
        for prompt in prompts:
            prompt_ids(tokenizer, prompt)

        self.tokenizer = tokenizer
        self.prompts = prompts
        self.seed = seed
        self.rules = rules
        self.texts: list[str] = []  # newest samples, prompts included

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Draw the samples and log them as text."""
        if not trainer.is_global_zero or not math.isfinite(pl_module.evaluation.loss):
            return
        texts = list(self.prompts)
        options = {"seed": self.seed, "batch_size": len(texts), "ignore_end_of_text": True}  # short ones: show several
        for piece in generate_stream(pl_module.model, self.tokenizer, self.prompts, **options, **self.rules):
            texts[piece.sample] += piece.text.replace(END_OF_TEXT, "\n\n")
        self.texts = texts
        for logger in takers(trainer, "log_samples"):
            logger.log_samples(texts, trainer.global_step)
