"""What a run shows of itself: scalars and samples for every logger that the trainer has."""

import math
import time

import lightning as L
import torch

from gptmini.generation import check_sampling, generate_stream, prompt_ids
from gptmini.tokenizer import END_OF_TEXT, Tokenizer
from gptmini.training.loggers import log, log_text
from gptmini.training.module import GPTModule
from gptmini.training.settings import check_count


class Scalars(L.Callback):
    """Logs the training loss and its companions on the first, the last and every few steps, and each validation."""

    def __init__(self, every_steps: int) -> None:
        """Log every so many optimizer steps; ValueError unless that is a whole number above 0."""
        self.every_steps = check_count("every_steps", every_steps)
        self._ended: float | None = None  # when the last micro-step ended; None when something else came between
        self._seconds, self._tokens = 0.0, 0

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: GPTModule, outputs: object, batch: tuple, batch_idx: int
    ) -> None:
        """Count tokens and time of micro-steps that follow each other; log when the interval comes round."""
        now = time.perf_counter()
        if self._ended is not None:
            self._seconds += now - self._ended
            self._tokens += batch[0].numel() * trainer.world_size
        self._ended = now
        step = trainer.global_step
        due = step in (1, pl_module.settings.max_steps) or step % self.every_steps == 0  # the first shows that it runs
        if due and (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self._log(trainer, pl_module)

    def on_validation_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Keep validation out of the training speed."""
        self._ended = None

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Log the validation."""
        evaluation = pl_module.evaluation
        log(trainer, {"val/loss": evaluation.loss, "val/bits_per_byte": evaluation.bits_per_byte})

    def _log(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        loss = pl_module.step_loss
        if trainer.world_size > 1:
            loss = trainer.strategy.reduce(loss, reduce_op="mean")
        metrics = {
            "train/loss": loss.item(),
            "grad_norm": pl_module.grad_norm.item(),
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
        }
        if self._seconds:
            metrics["tokens_per_second"] = self._tokens / self._seconds
        self._seconds, self._tokens = 0.0, 0
        log(trainer, metrics)
        self._ended = time.perf_counter()  # what logging took is not training


class Samples(L.Callback):
    """Writes a sample of text at every validation, always from the same prompt and random stream."""

    def __init__(self, tokenizer: Tokenizer, prompt: str, seed: int, **rules: float | None) -> None:
        """Take the arguments of generate_stream, rules being check_sampling's; an empty prompt starts a document.

        Raises ValueError: an argument of the wrong type or out of range, or a prompt that cannot be encoded.
        """
        if type(prompt) is not str or type(seed) is not int:
            raise ValueError(f"prompt must be text and seed a whole number, got {prompt!r} and {seed!r}")
        check_sampling(**rules)
        self.tokenizer, self.prompt, self.seed, self.rules = tokenizer, prompt, seed, rules
        self.prompt_ids = torch.tensor([prompt_ids(tokenizer, prompt)])  # (1, T)
        self.text = ""  # newest sample, prompt included

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Draw the sample and log it as text."""
        if not trainer.is_global_zero or not math.isfinite(pl_module.evaluation.loss):
            return
        stream = generate_stream(pl_module.model, self.prompt_ids, seed=self.seed, **self.rules)
        text = self.tokenizer.decode([int(token) for token in stream])
        self.text = self.prompt + text.replace(END_OF_TEXT, "\n\n")  # short documents: show several
        log_text(trainer, "samples", self.text)
