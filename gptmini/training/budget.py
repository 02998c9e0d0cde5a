"""What budget= chooses: the sizes and steps that make the best model of a text in a time, on the machine at hand.

Models of rising width are trained for a few steps each, which says how many steps of each fit into the time. A law of
the loss says how each of them would end, and the search stops where that begins to rise. Everything else follows from
the width, the text and the number of steps.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from gptmini.data.store import TokenStore
from gptmini.hardware import Hardware, clock
from gptmini.model import GPT, GPTConfig, ModelSettings, new_gpt, training_loss
from gptmini.model.gpt import gpt_of_shapes
from gptmini.training.batch_size import choose_batch_size
from gptmini.training.module import GPTModule
from gptmini.training.trainer_settings import TrainerSettings, micro_steps

# Widths of the models that are compared. None is narrower: in 60 s, 64 wide ended 0.2 to 1.3 % above 96 on three texts.
WIDTHS = (96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
VOCABULARIES = (512, 1000, 2000, 4000, 8000, 16_000, 32_000)
BYTES_OF_PAIRS = 0.36  # bytes a token, divided by the natural logarithm of the number of ids
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

# Seconds that a run takes besides its steps and validations: before the command looks at its clock, and at the end.
AROUND = 2.5
# Seconds that the sample and the pictures of a validation take.
SAMPLED = 0.5
# Share of the time that validations may take, and most of them; one follows the last step in any case.
VALIDATED_SHARE = 0.05
MOST_VALIDATIONS = 20
# Steps of a model that are measured in a turn, besides one that warms up; fewer where they take more than this share of
# the time.
MEASURED_STEPS = 2
MEASURED_SHARE = 0.1
TURNS = 2  # in which the models are measured, so that a slow moment of the machine does not decide between them
# Share of the time for which the chosen model is measured, since the speed of many machines changes every few seconds.
CHOSEN_SHARE = 0.03
CHOSEN_SECONDS = 60.0  # for which it is measured at most, which is enough for such changes


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text to train on, in the tokens of a tokenizer."""

    n_bytes: int
    n_vocab: int
    bytes_per_token: float

    @classmethod
    def in_pairs(cls, n_bytes: int, width: int) -> "Text":
        """A text that is not prepared yet, in as many byte pairs as suit it and the width of a model.

        That is 2,000 for 200 KB and 8,000 for 20 MB, and more only where the width is above 200. With fewer ids a text
        has more tokens; with more of them each is seen too seldom, and a narrow model spends its time on them.
        """
        wanted = min(2000 * (n_bytes / 200e3) ** 0.3, max(8000, 50 * width))
        n_vocab = min(VOCABULARIES, key=lambda n_vocab: abs(math.log(n_vocab / wanted)))
        return cls(
            n_bytes=n_bytes, n_vocab=n_vocab, bytes_per_token=BYTES_OF_PAIRS * math.log(n_vocab)
        )

    @classmethod
    def of(cls, store: TokenStore) -> "Text":
        """A text that was prepared."""
        return cls(
            n_bytes=store.n_bytes("train"),
            n_vocab=store.tokenizer.n_vocab,
            bytes_per_token=1 / store.tokens_per_byte("train"),
        )


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


def predicted(n_weights: int, n_bytes: float, n_vocab: int) -> float:
    """The law: how a run ends, in bits per byte. It ranks the runs on one text.

    Args:
        n_weights: in the blocks of the model.
        n_bytes: of text that the run trains on.
        n_vocab: ids of the tokenizer.

    Fitted to 38 runs of 20 to 180 s on two cores, on 20 MB of manual pages, by scripts/benchmarks/dial.py. The root
    mean square of its relative errors there is 1.8 %, and the largest is 3.9 %. The form is that of Hoffmann et al.
    2022, equation 2, with a term for the vocabulary.
    """
    return (
        0.195
        + 0.377 * (n_weights / 1e6) ** -0.107
        + 0.510 * (n_bytes / 1e6) ** -0.566
        + 0.156 * (n_vocab / 4000) ** -0.513
    )


def weights_of(config: GPTConfig) -> int:
    """Number of weights in the blocks of a model."""
    blocks = gpt_of_shapes(config).blocks
    return sum(weight.numel() for block in blocks for weight in block.parameters())


def sizes_of(width: int, n_heads: int | None = None) -> dict[str, int]:
    """The sizes of a model that belong to a width, and to a number of heads if one is given, as ModelSettings has them.

    A head is 32 wide, and 64 from a width of 512 on; or wider, where that does not divide the width.
    """
    if n_heads is None:
        d_head = 32 if width < 512 else 64
        n_heads = max((n for n in range(1, width // d_head + 1) if width % (2 * n) == 0), default=1)
    return {
        "d_model": width,
        "n_layers": max(2, round(width / 80)),
        "n_heads": n_heads,
        "n_kv_heads": n_heads // 2 if n_heads % 2 == 0 else n_heads,
        "d_ff": 8 * round(width / 3),  # its three matrices are as large as two of 4 * width
    }


def times_of_steps(
    model: GPT,
    compute_loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    batch_size: int,
    n_micro_steps: int,
    is_bf16: bool,
    least: float,
    most: float,
) -> list[float]:
    """The seconds of each of some optimizer steps, behind one that warms up.

    Args:
        model: on its device. It is trained on tokens that mean nothing, and of no use afterwards.
        compute_loss: the loss of a micro-step's tokens and targets, (B, T) each.
        optimizer: of the model.
        batch_size: sequences of a micro-step.
        n_micro_steps: micro-steps of a step.
        is_bf16: whether matrices are multiplied in bfloat16.
        least: seconds for which steps are measured, and some steps in any case.
        most: seconds after which no further step begins.
    """
    device = model.embedding.weight.device
    shape = (batch_size, model.config.context_length)
    tokens = torch.randint(model.config.vocab_size, shape, device=device)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=is_bf16)
    model.train()

    times: list[float] = []
    while len(times) < 2 or (sum(times) < most and not has_enough(times[1:], least)):
        began = clock(device.type)
        for _ in range(n_micro_steps):
            with autocast:
                loss = compute_loss(tokens, tokens)
            (loss / n_micro_steps).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append(clock(device.type) - began)
    return times[1:]


def has_enough(times: Sequence[float], least: float) -> bool:
    """Whether steps that took these times are enough for a measurement of so many seconds."""
    return len(times) >= MEASURED_STEPS and sum(times) >= least


def seconds_of_run(module: GPTModule, hardware: Hardware, *, seconds: float) -> float:
    """Median seconds of an optimizer step of a run of some seconds, whose module is of no use afterwards."""
    settings = module.settings
    model = module.model.to(hardware.device)

    times = times_of_steps(
        model,
        module.compute_loss,
        module.make_optimizer(model),
        batch_size=settings.micro_batch_size,
        n_micro_steps=settings.n_micro_steps,
        is_bf16=hardware.precision == "bf16",
        least=min(CHOSEN_SHARE * seconds, CHOSEN_SECONDS),
        most=MEASURED_SHARE * seconds,
    )
    return statistics.median(times)


def steps_in(
    seconds: float, seconds_a_step: float, *, most: float, tokens_a_step: int, n_val_tokens: int
) -> tuple[int, int]:
    """The steps that fill a time with their validations, and the steps between two validations.

    A validation, which has no backward pass, takes a third of the time of training on as many tokens, and its sample.

    Args:
        seconds: for steps and validations.
        seconds_a_step: seconds of a step.
        most: steps that the run takes at most.
        tokens_a_step: tokens that a step trains on.
        n_val_tokens: tokens of a validation.
    """
    of_validation = seconds_a_step * n_val_tokens / tokens_a_step / 3 + SAMPLED
    n_validations = max(1, int(min(MOST_VALIDATIONS, VALIDATED_SHARE * seconds / of_validation)))
    n_steps = int(min(most, (seconds - n_validations * of_validation) / seconds_a_step))
    return n_steps, max(1, math.ceil(n_steps / n_validations))
