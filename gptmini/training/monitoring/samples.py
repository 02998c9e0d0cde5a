"""Samples of text that the model writes at every validation."""

import math
from typing import Any

import lightning as L

from gptmini.checks import UserError, whole
from gptmini.generation import Rules, generate_stream, prompt_ids
from gptmini.tokenizer import END_OF_TEXT, Tokenizer
from gptmini.training.module import GPTModule
from gptmini.training.monitoring.logger import run_loggers


class Samples(L.Callback):
    """Writes samples of text at every validation, always from the same prompts and random streams.

    The texts go to every RunLogger, and stay in the attribute texts until the next validation.
    """

    def __init__(self, tokenizer: Tokenizer, prompts: list[str], seed: int, **rules: Any) -> None:
        """Choose what is sampled.

        Args:
            tokenizer: of the run.
            prompts: texts to continue, one sample each; an empty prompt starts a document.
            seed: of the random draws; any whole number.
            rules: fields of Rules, such as max_new_tokens and temperature; Rules checks their types.

        Raises UserError: an argument of the wrong type or out of range, or a prompt that cannot be encoded.
        """
        are_texts = (
            isinstance(prompts, list) and prompts and all(type(prompt) is str for prompt in prompts)
        )
        if not are_texts:
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
        """Draw the samples and log them, on the first process alone and unless the validation loss is not finite."""
        if not math.isfinite(pl_module.newest_evaluation.loss):
            return
        model = pl_module.whole_model()
        if model is None:
            return

        # All samples are drawn side by side, as one batch; their pieces come in turns.
        texts = list(self.prompts)
        pieces = generate_stream(
            model,
            self.tokenizer,
            self.prompts,
            seed=self.seed,
            batch_size=len(texts),
            ignore_end_of_text=True,  # where documents are short, a sample shows several
            **self.rules,
        )
        for piece in pieces:
            texts[piece.sample] += piece.text.replace(END_OF_TEXT, "\n\n")

            # The samples end where a signal comes or the time is over: they can be so long that they take hours.
            if any(pl_module.stop_request()):
                pieces.close()
                break

        self.texts = texts
        for logger in run_loggers(trainer):
            logger.log_samples(texts, trainer.global_step)
