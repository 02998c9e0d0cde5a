"""Generate text samples at every validation."""

import math
from dataclasses import asdict
from statistics import fmean
from typing import Annotated

import lightning as L
from pydantic import Field, PositiveInt, validate_call

from gptmini.data import SEARCHED, Copies, find_copies, first_question
from gptmini.generation import Rules, generate_stream, prompt_ids
from gptmini.settings import STRICT
from gptmini.system.errors import UserError
from gptmini.tokenizer import END_OF_TEXT, Tokenizer
from gptmini.training.devices.distributed import full_model
from gptmini.training.loggers.logger import log, run_loggers
from gptmini.training.module import GPTModule


class Samples(L.Callback):
    """A callback that samples text at every validation. It always uses the same prompts and the same random numbers.

    If the run is trained on chats, an empty prompt is the first question of a held-out chat.

    Every RunLogger receives the samples. The attribute 'texts' keeps the samples until the next validation.

    Each prompt gets one sample. The class Rules describes and checks the other arguments.
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
        self.texts: list[str] = []  # latest samples; each sample starts with its prompt
        self.copies: list[Copies] = []  # the parts of each sample that stand in the training text
        self.key = "callbacks.samples"  # configuration key of this callback, for messages

    def check(self, tokenizer: Tokenizer) -> None:
        """Raise UserError if the tokenizer cannot encode a prompt."""
        for prompt in self.prompts:
            try:
                prompt_ids(tokenizer, prompt)
            except UserError as error:
                raise UserError(
                    f"the tokenizer cannot encode a prompt of {self.key}.prompts, got {prompt!r}: {error}"
                ) from None

    def setup(self, trainer: L.Trainer, pl_module: GPTModule, stage: str) -> None:
        """Load the tokenizer of the run, and the first question of its chats."""
        self.tokenizer = pl_module.store.tokenizer
        self.question: list[int] = []
        if "" in self.prompts:
            questions = (first_question(chats) for chats in pl_module.store.chats)
            self.question = next(filter(None, questions), [])

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Generate and log the samples on the first process, unless the validation loss is not finite."""
        if not math.isfinite(pl_module.evaluation.loss):
            return
        model = full_model(pl_module.model, keep=trainer.is_global_zero)
        if model is None:
            return

        # All samples are generated in one batch. The samples take turns: each piece belongs to one sample.
        question = self.tokenizer.decode(self.question)
        texts = [prompt or question for prompt in self.prompts]
        pieces = generate_stream(
            model,
            self.tokenizer,
            [prompt or self.question or "" for prompt in self.prompts],
            seed=self.seed,
            batch_size=len(texts),
            # A sample may show several short documents, but only one answer.
            ignore_end_of_text=not self.question,
            **asdict(self.rules),
        )
        ids: list[list[int]] = [[] for _ in texts]
        for piece in pieces:
            ids[piece.sample].append(piece.token)
            texts[piece.sample] += piece.text.replace(END_OF_TEXT, "\n\n")

            # Stop on a signal or at the time limit, because long samples can take hours.
            if any(pl_module.stop_request()):
                pieces.close()
                break

        self.texts = texts
        for logger in run_loggers(trainer):
            logger.log_entry("samples", texts, trainer.global_step)
        store = pl_module.store
        if store.n_tokens("train") <= SEARCHED:
            self.copies = [find_copies(of_sample, store) for of_sample in ids]
            log(trainer, {"val/copied": fmean(copies.share for copies in self.copies)})
