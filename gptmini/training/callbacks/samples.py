"""Samples of text that the model writes at every validation."""

import math
from dataclasses import asdict
from typing import Annotated

import lightning as L
from pydantic import Field, PositiveInt, validate_call

from gptmini.generation import Rules, generate_stream, prompt_ids
from gptmini.settings import STRICT
from gptmini.tokenizer import END_OF_TEXT, Tokenizer, from_dict
from gptmini.training.loggers.logger import run_loggers
from gptmini.training.module import GPTModule
from gptmini.user_error import UserError


class Samples(L.Callback):
    """Writes samples of text at every validation, always from the same prompts and random streams.

    The texts go to every RunLogger, and stay in the attribute texts until the next validation.
    """

    @validate_call(config=STRICT)
    def __init__(
        self,
        *,
        prompts: Annotated[list[str], Field(min_length=1)],
        seed: int,
        max_new_tokens: PositiveInt,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
    ) -> None:
        """Choose what is sampled.

        Args:
            prompts: texts to continue, one sample each; an empty prompt starts a document.
            seed: of the random draws; any whole number.
            max_new_tokens: length of a sample.
            temperature, top_k, top_p, min_p, repetition_penalty: as in Rules, which checks their ranges.
        """
        self.prompts = prompts
        self.seed = seed
        self.rules = Rules(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
        )
        self.texts: list[str] = []  # newest samples, prompts included
        self.key = "callbacks.samples"  # of this callback in the configuration, for messages

    def check(self, tokenizer: Tokenizer) -> None:
        """Raise UserError for a prompt that a tokenizer cannot encode."""
        for prompt in self.prompts:
            try:
                prompt_ids(tokenizer, prompt)
            except UserError as error:
                raise UserError(
                    f"{self.key}.prompts must fit the tokenizer, got {prompt!r}: {error}"
                ) from None

    def setup(self, trainer: L.Trainer, pl_module: GPTModule, stage: str) -> None:
        """Take the tokenizer of the run's text; UserError for a prompt that it cannot encode."""
        self.tokenizer = from_dict(pl_module.store.tokenizer_state)
        self.check(self.tokenizer)

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
            **asdict(self.rules),
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
