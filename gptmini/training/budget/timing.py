"""Measure how long optimizer steps take, and compute how many steps fit into a given time."""

import math
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from gptmini.data import split_windows
from gptmini.model import GPT
from gptmini.system.hardware import Hardware, clock
from gptmini.training.module import GPTModule
from gptmini.training.trainer_settings import MIN_VALIDATIONS, TrainerSettings

# Seconds that a run needs in addition to its steps and validations. They pass before the command starts its clock, and
# at the end of the run.
SECONDS_AROUND = 2.5
# Seconds that a validation needs for its sample and its images.
SAMPLED = 0.5
# Maximum time for all validations, as a fraction of the time of the run, and maximum number of validations. A
# validation always follows the last step.
VALIDATED_SHARE = 0.05
MOST_VALIDATIONS = 20
# Maximum fraction of the time for the first MIN_VALIDATIONS validations.
TREND_SHARE = 0.2


def measure_step(
    model: GPT,
    compute_loss: Callable[..., Tensor],
    make_optimizer: Callable[[GPT], torch.optim.Optimizer],
    trainer: TrainerSettings,
    hardware: Hardware,
    *,
    seconds: float = 0.0,
) -> tuple[float, float]:
    """Return the median seconds per optimizer step on one device, and the seconds of the warm-up.

    The warm-up creates the optimizer's state and compiles the loss, so its seconds do not count for any step.

    A step of many micro-steps could take minutes. So run only two micro-steps per step: the first, and the last with
    the optimizer's update. All micro-steps before the last take as long as the first:

        seconds = (n_micro_steps - 1) * first + last

    The model is moved to the device and trained on random tokens; discard the model afterwards.

    Args:
        compute_loss: a function that returns the loss of a micro-step from its tokens and targets, (B, T) each, and
            from the keys of dropout, (B,), or None. Compiled code only suits micro-steps of batch_size sequences.
        trainer: the settings; batch_size must be a number.
        seconds: how long to measure. At least one step is measured.
    """
    model.to(hardware.device).train()
    optimizer = make_optimizer(model)
    n_micro_steps = trainer.n_micro_steps
    # Tokens and targets are slices of windows, as in a run. Compiled code depends on the strides of the tensors.
    shape = (trainer.micro_batch_size, model.config.context_length + 1)
    generator = torch.Generator(hardware.device)  # the random state of the run does not change
    windows = torch.randint(
        model.config.vocab_size, shape, generator=generator, device=hardware.device
    )  # (B, T + 1)
    # With the precision bf16_stream, the loss of a run turns this autocast off. Compiled code depends on the cache, and
    # Lightning turns the cache off together with autocast.
    is_bf16 = hardware.precision != "fp32"
    autocast = torch.autocast(
        hardware.device, torch.bfloat16, enabled=is_bf16, cache_enabled=not is_bf16
    )

    def micro_step(windows: Tensor, *, is_last: bool) -> float:
        began = clock(hardware.device)
        keys = None
        if model.config.dropout:
            keys = torch.zeros(len(windows), dtype=torch.int32, device=hardware.device)  # (B,)
        with autocast:
            loss = compute_loss(*split_windows(windows), keys)
        (loss / n_micro_steps).backward()
        if is_last:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return clock(hardware.device) - began

    # One sequence is enough for a warm-up. A micro-step of a large model on a CPU can take longer than a short run.
    warm_up = micro_step(windows if hardware.compile else windows[:1], is_last=True)
    times: list[float] = []
    spent = 0.0
    while not times or spent < seconds:
        first = micro_step(windows, is_last=False) if n_micro_steps > 1 else 0.0
        last = micro_step(windows, is_last=True)
        times.append((n_micro_steps - 1) * first + last)
        spent += first + last
    return statistics.median(times), warm_up


def measure_module(module: GPTModule, *, seconds: float) -> tuple[float, float]:
    """Measure the steps of a run as measure_step does. A later module with the same settings uses the compiled code."""
    return measure_step(
        module.model,
        module.compute_loss,
        module.make_optimizer,
        module.settings,
        module.hardware,
        seconds=seconds,
    )


def seconds_of_validation(seconds_a_step: float, module: GPTModule) -> float:
    """Return the estimated seconds of a validation.

    A validation has no backward pass. So it takes a third of the time that training on the same number of tokens takes,
    plus the time for its sample.
    """
    n_tokens = module.store.n_tokens("val")
    n_tokens = min(n_tokens, module.settings.val_tokens or n_tokens)
    return seconds_a_step * n_tokens / module.tokens_per_step / 3 + SAMPLED


def steps_that_fit(
    seconds: float, seconds_a_step: float, of_validation: float, *, most: float
) -> tuple[int, int]:
    """Return how many steps and their validations fit into a time, and the number of steps between two validations.

    A validation takes of_validation seconds. The run has at most `most` steps.
    """
    fitting = min(MOST_VALIDATIONS, VALIDATED_SHARE * seconds / of_validation)
    # A few validations show the trend of the loss, so they may take more of the time.
    fitting = max(fitting, min(MIN_VALIDATIONS, TREND_SHARE * seconds / of_validation))
    n_validations = max(1, int(fitting))
    n_steps = int(min(most, (seconds - n_validations * of_validation) / seconds_a_step))
    return n_steps, max(1, math.ceil(n_steps / n_validations))
