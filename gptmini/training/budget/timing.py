"""How long optimizer steps take, and how many fill a time."""

import math
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gptmini.hardware import Hardware, clock
from gptmini.model import GPT
from gptmini.training.module import GPTModule

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
# Share of the time for which the chosen model is measured, since the speed of many machines changes every few seconds.
CHOSEN_SHARE = 0.03
CHOSEN_SECONDS = 60.0  # for which it is measured at most, which is enough for such changes


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
