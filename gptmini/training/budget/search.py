"""The search behind budget=: find the sizes and steps of the best model for a text, in the time on this machine.

The search trains models of increasing width for a few steps each, to find how many steps fit into the time. A scaling
law predicts the final loss of each model. The search stops when the predicted loss rises. All other settings follow
from the width, the text and the number of steps.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from pydantic import ValidationError

from gptmini.hardware import Hardware
from gptmini.model import GPT, GPTConfig, ModelSettings, new_gpt, training_loss
from gptmini.training.budget.law import Text, n_block_weights, predicted_loss, sizes_for_width
from gptmini.training.budget.timing import MEASURED_SHARE, times_of_steps
from gptmini.training.devices.batch_size import choose_batch_size
from gptmini.training.trainer_settings import TrainerSettings, micro_steps

# Widths to compare. A width of 64 is too small: on three texts, its loss after 60 s was 0.2 to 1.3 % higher than with a
# width of 96.
WIDTHS = (96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
# (context_length, global_batch_size). The search takes the first pair for which at most MANY_STEPS
# steps fit into the time.
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

# Maximum number of passes over a text. Up to four passes, repeated text is nearly as good as new text. Source:
# Muennighoff et al. 2023, "Scaling Data-Constrained Language Models".
MOST_PASSES = 4.0
# Minimum number of steps, if the time allows. On a very small text, four passes are not enough to train a model.
LEAST_STEPS = 100
# Maximum number of weights in the blocks per byte of text. More weights did not improve the loss on a text of 200 KB.
MOST_WEIGHTS = 8.0
# Dropout of a model with more weights in its blocks than bytes in the text. Without dropout it would overfit.
DROPOUT = 0.1

# Rounds of measurements. There are two, so that a short slowdown of the machine does not change the choice.
TURNS = 2


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model that budget= may choose, with its predicted loss."""

    config: GPTConfig
    global_batch_size: int
    n_steps: float  # useful steps that fit into the time
    loss: float  # predicted by the law, in bits per byte


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search for the best model in a given time. It changes only open keys of the settings.

    Args:
        model: settings of the model.
        trainer: settings of the trainer.
        make_optimizer: builds the optimizer of a model.
        hardware: device and precision of training.
        is_open: whether the search may choose a key, such as model.d_model.
        seconds: training time.
    """

    model: ModelSettings
    trainer: TrainerSettings
    make_optimizer: Callable[[GPT], torch.optim.Optimizer]
    hardware: Hardware
    is_open: Callable[[str], bool]
    seconds: float
    # Seconds of the fastest step so far, by model and global batch size.
    fastest: dict[tuple[GPTConfig, int], float] = field(default_factory=dict, init=False)

    def candidates(self, text_of: Callable[[int], Text]) -> list[Candidate]:
        """Return candidates in order of increasing width. Stop after the first candidate that is not the best so far.

        text_of returns the size of the text for a width. The vocabulary may depend on the width.
        Raises pydantic.ValidationError if no width fits the keys that are not open.
        """
        for _ in range(TURNS - 1):
            self._turn(text_of)
        return self._turn(text_of)

    def _turn(self, text_of: Callable[[int], Text]) -> list[Candidate]:
        """Measure the candidates once, in increasing width, and return them."""
        widths = WIDTHS if self.is_open("model.d_model") else (self.model.d_model,)
        found: list[Candidate] = []
        for width in widths:
            text = text_of(width)
            try:
                kept = None if self.is_open("model.n_heads") else self.model.n_heads
                settings = replace(self.model, **self._open("model", sizes_for_width(width, kept)))
                config = settings.with_vocab_size(text.n_vocab)
            except ValidationError:  # the fixed number of heads does not divide this width
                if not found and width == widths[-1]:
                    raise
                continue

            n_weights = n_block_weights(config)
            if found and n_weights > MOST_WEIGHTS * text.n_bytes:
                break
            found.append(self._candidate(text, config, n_weights))
            if best_of(found) is not found[-1]:
                break
        return found

    def _candidate(self, text: Text, config: GPTConfig, n_weights: int) -> Candidate:
        """Return the candidate for a model, with a number of tokens per step that suits the time."""
        dropout = DROPOUT if n_weights > text.n_bytes else 0.0
        tokens_a_step = 0
        for context_length, batch_size in STEPS_OF:
            changes = {"context_length": context_length, "dropout": dropout}
            config = replace(config, **self._open("model", changes))
            changes = {"global_batch_size": batch_size}
            trainer = replace(self.trainer, **self._open("trainer", changes))

            before = tokens_a_step
            tokens_a_step = config.context_length * trainer.global_batch_size
            if tokens_a_step == before:
                continue

            # If more than MANY_STEPS steps fitted into the time in an earlier turn, do not measure these sizes again.
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
        """Return the maximum number of steps: trainer.max_steps if fixed, otherwise the number of useful steps."""
        if not self.is_open("trainer.max_steps"):
            return self.trainer.max_steps
        worth_it = MOST_PASSES * text.n_bytes / text.bytes_per_token / tokens_a_step
        return max(LEAST_STEPS, worth_it)

    def _open(self, group: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a group's open keys."""
        return {name: value for name, value in values.items() if self.is_open(f"{group}.{name}")}

    def _seconds_a_step(self, config: GPTConfig, trainer: TrainerSettings) -> float:
        """Run a few optimizer steps of a new model, and return the seconds of the fastest step."""
        model = new_gpt(config, seed=0)
        batch_size = choose_batch_size(
            model,
            global_batch_size=trainer.global_batch_size,
            n_ranks=trainer.n_ranks,
            device=self.hardware.device,
            precision=self.hardware.precision,
            compile=False,
        )

        times = times_of_steps(
            model.to(self.hardware.device),
            partial(training_loss, model),
            self.make_optimizer(model),
            batch_size=batch_size,
            n_micro_steps=micro_steps(trainer.global_batch_size, batch_size, trainer.n_ranks),
            is_bf16=self.hardware.precision != "fp32",
            least=0.0,
            most=MEASURED_SHARE * self.seconds,
        )
        return min(times)


def best_of(candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate with the lowest predicted loss."""
    return min(candidates, key=lambda candidate: candidate.loss)
