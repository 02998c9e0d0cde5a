"""The search behind budget=. It finds the best model that this machine can train on a text in a given time.

The search trains models of increasing width for a few steps each. So it measures how many steps fit into the time. A
scaling law predicts the final loss of each model. The search stops when the predicted loss rises. The width, the text
and the number of steps determine all other settings.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from pydantic import ValidationError

from gptmini.hardware import Hardware
from gptmini.model import GPT, GPTConfig, ModelSettings, new_gpt, training_loss
from gptmini.training.budget.law import Text, n_block_weights, predicted_loss, sizes_for_width
from gptmini.training.budget.timing import MEASURED_SHARE, TooSlow, times_of_steps
from gptmini.training.devices.batch_size import choose_batch_size
from gptmini.training.devices.recomputing import recompute_activations
from gptmini.training.trainer_settings import TrainerSettings, micro_steps
from gptmini.user_error import ran_out_of_memory

# Widths that the search compares. A width of 64 is too small. On three texts, the loss after 60 s was 0.2 to 1.3 %
# higher with a width of 64 than with a width of 96.
WIDTHS = (96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
# Pairs of context_length and global_batch_size. The search uses the first pair for which at most MANY_STEPS steps fit
# into the time.
STEPS_OF = (
    (128, 16),
    (256, 16),
    (256, 32),
    (512, 32),
    (512, 64),
    (1024, 64),
    (1024, 128),
    (1024, 256),
    (1024, 512),
)
MANY_STEPS = 2000

# Maximum number of passes over a text. For up to four passes, training on the same text again is nearly as good as
# training on new text. Source: Muennighoff et al. 2023, "Scaling Data-Constrained Language Models".
MOST_PASSES = 4.0
# Minimum number of steps, if they fit into the time. On a very small text, four passes are not enough to train a model.
LEAST_STEPS = 100
# Maximum number of weights in the blocks for each byte of text. More weights did not improve the loss on a text of
# 200 KB.
MOST_WEIGHTS = 8.0
# Dropout of a model if its blocks have more weights than the text has bytes. Without dropout, this model would overfit.
DROPOUT = 0.1

# Maximum fraction of the time for all measurements. A measurement that has begun may take longer.
SEARCH_SHARE = 0.15
# Number of rounds of measurements. With two rounds, a short slowdown of the machine does not change the choice.
TURNS = 2


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model that budget= may choose, and the predicted loss of this model."""

    config: GPTConfig
    global_batch_size: int
    n_steps: float  # number of useful steps that fit into the time
    loss: float  # loss that the law predicts, in bits per byte


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search for the best model in a given time. The search changes only the settings whose keys are open.

    Args:
        model: settings of the model.
        trainer: settings of the trainer.
        make_optimizer: a function that builds the optimizer of a model.
        hardware_for: a function that returns the device and the precision for a width.
        is_open: a function that returns whether a key is open, for example model.d_model. The search may choose the
            value of an open key.
        seconds: training time in seconds.
    """

    model: ModelSettings
    trainer: TrainerSettings
    make_optimizer: Callable[[GPT], torch.optim.Optimizer]
    hardware_for: Callable[[int], Hardware]
    is_open: Callable[[str], bool]
    seconds: float
    # Seconds that the fastest step has taken so far, for each model and each global batch size.
    fastest: dict[tuple[GPTConfig, int], float] = field(default_factory=dict, init=False)
    began: float = field(default_factory=time.monotonic, init=False)

    def candidates(self, text_of: Callable[[int], Text]) -> list[Candidate]:
        """Return candidates in order of increasing width. Stop after the first candidate that is not the best so far.

        The search also stops at its time limit, and at a width that does not fit into memory or into the training time.
        The function text_of returns the size of the text for a width, because the vocabulary may depend on the width.

        Raises pydantic.ValidationError if no width fits the values of the keys that are not open. Raises the error of
        the full memory if no width fits into memory. Raises TooSlow if no width fits into the training time.
        """
        found = self._turn(text_of)
        for _ in range(TURNS - 1):
            again = self._turn(text_of)
            if self._seconds_left() <= 0:  # this round may be incomplete
                return found
            found = again
        return found

    def _turn(self, text_of: Callable[[int], Text]) -> list[Candidate]:
        """Measure each candidate once, in order of increasing width. Return the candidates."""
        widths = WIDTHS if self.is_open("model.d_model") else (self.model.d_model,)
        found: list[Candidate] = []
        for width in widths:
            if found and self._seconds_left() <= 0:
                break
            text = text_of(width)
            try:
                kept = None if self.is_open("model.n_heads") else self.model.n_heads
                sizes = self._open("model", sizes_for_width(width, kept))
                # Without a number, the model's form decides the key-value heads and the width of the MLP.
                form = {name for name in sizes if getattr(self.model, name) is None}
                sizes = {name: size for name, size in sizes.items() if name not in form}
                settings = replace(self.model, **sizes)
                config = settings.with_vocab_size(text.n_vocab)
            except ValidationError:  # the fixed number of heads does not divide this width
                if not found and width == widths[-1]:
                    raise
                continue

            n_weights = n_block_weights(config)
            if found and n_weights > MOST_WEIGHTS * text.n_bytes:
                break
            try:
                found.append(self._candidate(text, config, n_weights))
            except (RuntimeError, MemoryError) as error:
                if not found or not ran_out_of_memory(error):
                    raise
                break
            except TooSlow:
                if not found:
                    raise
                break
            if best_of(found) is not found[-1]:
                break
        return found

    def _candidate(self, text: Text, config: GPTConfig, n_weights: int) -> Candidate:
        """Return the candidate for a model. Choose a number of tokens per step that suits the time."""
        dropout = DROPOUT if n_weights > text.n_bytes else 0.0
        trainer = self.trainer
        tokens_a_step = 0
        n_steps = 0.0
        for context_length, batch_size in STEPS_OF:
            if tokens_a_step and self._seconds_left() <= 0:
                break
            changes = {"context_length": context_length, "dropout": dropout}
            config = replace(config, **self._open("model", changes))
            changes = {"global_batch_size": batch_size}
            trainer = replace(self.trainer, **self._open("trainer", changes))

            before = tokens_a_step
            tokens_a_step = config.context_length * trainer.global_batch_size
            if tokens_a_step == before:
                continue

            # In an earlier round, more than MANY_STEPS steps may have fitted into the time. Then do not measure these
            # sizes again.
            sizes = (config, trainer.global_batch_size)
            known = self.fastest.get(sizes, math.inf)
            if self.seconds / known <= MANY_STEPS:
                self.fastest[sizes] = min(known, self._seconds_a_step(config, trainer))
            in_time = self.seconds / self.fastest[sizes]
            n_steps = min(in_time, self.most_steps(text, tokens_a_step))
            if n_steps <= MANY_STEPS:
                break
        return Candidate(
            config=config,
            global_batch_size=trainer.global_batch_size,
            n_steps=n_steps,
            loss=predicted_loss(
                n_weights, n_steps * tokens_a_step * text.bytes_per_token, text.n_vocab
            ),
        )

    def most_steps(self, text: Text, tokens_a_step: int) -> float:
        """Return the maximum number of steps.

        This is trainer.max_steps if the key is not open. Otherwise it is the number of useful steps.
        """
        if not self.is_open("trainer.max_steps"):
            return self.trainer.max_steps
        worth_it = MOST_PASSES * text.n_bytes / text.bytes_per_token / tokens_a_step
        return max(LEAST_STEPS, worth_it)

    def _open(self, group: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return only the values whose keys in the group are open."""
        return {name: value for name, value in values.items() if self.is_open(f"{group}.{name}")}

    def _seconds_a_step(self, config: GPTConfig, trainer: TrainerSettings) -> float:
        """Run a few optimizer steps of a new model. Return the seconds that the fastest step took.

        The loss is not compiled, because compiling it for each model would take too long.
        """
        model = new_gpt(config, seed=0)
        hardware = self.hardware_for(config.d_model)
        batch_size = trainer.batch_size
        if batch_size == "auto":
            batch_size = choose_batch_size(
                model,
                global_batch_size=trainer.global_batch_size,
                n_ranks=trainer.n_ranks,
                device=hardware.device,
                precision=hardware.precision,
                compile=False,
                recompute=trainer.checkpoint_activations,
            )
        if trainer.checkpoint_activations:
            recompute_activations(model)

        times, _ = times_of_steps(
            model.to(hardware.device),
            partial(training_loss, model),
            self.make_optimizer(model),
            batch_size=batch_size,
            n_micro_steps=micro_steps(trainer.global_batch_size, batch_size, trainer.n_ranks),
            is_bf16=hardware.precision != "fp32",
            least=0.0,
            most=min(MEASURED_SHARE * self.seconds, max(0.0, self._seconds_left())),
            limit=self.seconds - (time.monotonic() - self.began),
        )
        return min(times)

    def _seconds_left(self) -> float:
        """Return the seconds that are left for measurements."""
        return SEARCH_SHARE * self.seconds - (time.monotonic() - self.began)


def best_of(candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate with the lowest predicted loss."""
    return min(candidates, key=lambda candidate: candidate.loss)
