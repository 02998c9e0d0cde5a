"""What budget= chooses: the sizes and steps that make the best model of a text in a time, on the machine at hand.

Models of rising width are trained for a few steps each, which says how many steps of each fit into the time. A law of
the loss says how each of them would end, and the search stops where that begins to rise. Everything else follows from
the width, the text and the number of steps.
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
from gptmini.training.budget.law import Text, predicted, sizes_of, weights_of
from gptmini.training.budget.timing import MEASURED_SHARE, times_of_steps
from gptmini.training.devices.batch_size import choose_batch_size
from gptmini.training.trainer_settings import TrainerSettings, micro_steps

# Widths of the models that are compared. None is narrower: in 60 s, 64 wide ended 0.2 to 1.3 % above 96 on three texts.
WIDTHS = (96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
# Tokens of a sequence and sequences of a step: the first with which at most MANY_STEPS steps fit into the time.
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

# Most passes over a text: up to so many, one over the same text is worth nearly as much as one over new text, by
# Muennighoff et al. 2023, "Scaling Data-Constrained Language Models".
MOST_PASSES = 4.0
# Steps that a run takes in any case where there is time: of a very small text, four passes are no training.
LEAST_STEPS = 100
# Most weights in the blocks for each byte of the text. A text of 200 KB was learned no better with more.
MOST_WEIGHTS = 8.0
# Of a model with more weights in its blocks than the text has bytes, which would else learn the text by heart.
DROPOUT = 0.1

TURNS = 2  # in which the models are measured, so that a slow moment of the machine does not decide between them


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model that may be trained, and what would come of it."""

    config: GPTConfig
    global_batch_size: int
    n_steps: float  # that fit into the time and are worth it
    loss: float  # by the law, in bits per byte


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search for the best model in a time; what is not open stays as it is in the settings.

    Args:
        model: settings of the model.
        trainer: settings of the trainer.
        make_optimizer: makes the optimizer of a model.
        hardware: what trains it.
        is_open: whether a key may be chosen, as model.d_model.
        seconds: of training.
    """

    model: ModelSettings
    trainer: TrainerSettings
    make_optimizer: Callable[[GPT], torch.optim.Optimizer]
    hardware: Hardware
    is_open: Callable[[str], bool]
    seconds: float
    # Seconds of the fastest step so far of each model, with the number of sequences of its steps.
    fastest: dict[tuple[GPTConfig, int], float] = field(default_factory=dict, init=False)

    def candidates(self, text_of: Callable[[int], Text]) -> list[Candidate]:
        """The models that may be trained for a text, in rising width, up to the first that is not the best so far.

        text_of gives the text in the tokens that suit a width.
        Raises pydantic.ValidationError: no sizes fit those that stay as they are.
        """
        for _ in range(TURNS - 1):
            self._turn(text_of)
        return self._turn(text_of)

    def _turn(self, text_of: Callable[[int], Text]) -> list[Candidate]:
        """The models in rising width, each measured once more."""
        widths = WIDTHS if self.is_open("model.d_model") else (self.model.d_model,)
        found: list[Candidate] = []
        for width in widths:
            text = text_of(width)
            try:
                kept = None if self.is_open("model.n_heads") else self.model.n_heads
                settings = replace(self.model, **self._open("model", sizes_of(width, kept)))
                config = settings.with_vocab_size(text.n_vocab)
            except ValidationError:  # heads that stay as they are do not divide this width
                if not found and width == widths[-1]:
                    raise
                continue

            n_weights = weights_of(config)
            if found and n_weights > MOST_WEIGHTS * text.n_bytes:
                break
            found.append(self._candidate(text, config, n_weights))
            if best_of(found) is not found[-1]:
                break
        return found

    def _candidate(self, text: Text, config: GPTConfig, n_weights: int) -> Candidate:
        """A model of some sizes, in steps of as many tokens as suit the time."""
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

            # Where an earlier turn has found more than MANY_STEPS to fit, larger steps are taken in any case.
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
            loss=predicted(n_weights, n_steps * tokens_a_step * text.bytes_per_token, text.n_vocab),
        )

    def most_steps(self, text: Text, tokens_a_step: int) -> float:
        """Steps that a run takes at most: as many as are worth it, or those that stay as they are."""
        if not self.is_open("trainer.max_steps"):
            return self.trainer.max_steps
        worth_it = MOST_PASSES * text.n_bytes / text.bytes_per_token / tokens_a_step
        return max(LEAST_STEPS, worth_it)

    def _open(self, group: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a group's keys that may be chosen."""
        return {name: value for name, value in values.items() if self.is_open(f"{group}.{name}")}

    def _seconds_a_step(self, config: GPTConfig, trainer: TrainerSettings) -> float:
        """Seconds of the fastest of some optimizer steps of a new model."""
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
    """The candidate that would end lowest by the law."""
    return min(candidates, key=lambda candidate: candidate.loss)
