"""What a run shows of itself: scalars, samples and notices, for every logger of the trainer that takes them.

One with log_text(tag, text, step) is given texts, one with say(line) what the person who watches should read.
"""

import math
import time

import lightning as L

from gptmini.generation import Rules, generate_stream, prompt_ids
from gptmini.tokenizer import END_OF_TEXT, Tokenizer
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
        """Take the arguments of generate_stream, rules being fields of Rules; an empty prompt starts a document.

        Raises ValueError: an argument of the wrong type or out of range, or a prompt that cannot be encoded.
        """
        if type(prompt) is not str or type(seed) is not int:
            raise ValueError(f"prompt must be text and seed a whole number, got {prompt!r} and {seed!r}")
        check_count("max_new_tokens", Rules(**rules).max_new_tokens)
        prompt_ids(tokenizer, prompt)
        self.tokenizer, self.prompt, self.seed, self.rules = tokenizer, prompt, seed, rules
        self.text = ""  # newest sample, prompt included

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Draw the sample and log it as text."""
        if not trainer.is_global_zero or not math.isfinite(pl_module.evaluation.loss):
            return
        options = {"seed": self.seed, "ignore_end_of_text": True, **self.rules}  # short documents: show several
        stream = generate_stream(pl_module.model, self.tokenizer, self.prompt, **options)
        self.text = self.prompt + "".join(piece.text for piece in stream).replace(END_OF_TEXT, "\n\n")
        for logger in filter(lambda logger: hasattr(logger, "log_text"), trainer.loggers):
            logger.log_text("samples", self.text, trainer.global_step)


def log(trainer: L.Trainer, metrics: dict[str, float]) -> None:
    """Send scalars to every logger at the trainer's optimizer step."""
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=trainer.global_step)


def say(trainer: L.Trainer, line: str) -> None:
    """Tell the person who watches."""
    for logger in filter(lambda logger: hasattr(logger, "say"), trainer.loggers):
        logger.say(line)
