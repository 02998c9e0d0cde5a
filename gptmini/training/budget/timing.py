"""Measure how long optimizer steps take, and compute how many steps fit into a given time."""

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from gptmini.data.batches import split_windows
from gptmini.data.store import TokenStore
from gptmini.hardware import Hardware, clock
from gptmini.model import GPT
from gptmini.settings import MIN_VALIDATIONS
from gptmini.training.module import GPTModule
from gptmini.training.trainer_settings import TrainerSettings

# Seconds that a run needs in addition to its steps and validations. They pass before the command starts its clock, and
# at the end of the run.
AROUND = 2.5
# Seconds that a validation needs for its sample and its images.
SAMPLED = 0.5
# Maximum time for all validations, as a fraction of the time of the run, and maximum number of validations. A
# validation always follows the last step.
VALIDATED_SHARE = 0.05
MOST_VALIDATIONS = 20
# Maximum fraction of the time for the first MIN_VALIDATIONS validations.
TREND_SHARE = 0.2
# Number of steps to measure per model and round, after a warm-up. Measure fewer steps if the steps would take more than
# the fraction MEASURED_SHARE of the time.
MEASURED_STEPS = 2
MEASURED_SHARE = 0.1
# Fraction of the time that is used to measure the chosen model. The speed of many machines changes every few seconds.
CHOSEN_SHARE = 0.03
# Maximum number of seconds to measure the chosen model. This is enough to average over changes of the speed.
CHOSEN_SECONDS = 60.0


class TooSlow(Exception):
    """An exception that ends a measurement, because the time is too short for one optimizer step.

    The attribute seconds is a lower limit of the seconds that a step takes. It is 0 if the warm-up took all the time.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


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
    limit: float = math.inf,
    is_compiled: bool = False,
) -> tuple[list[float], float]:
    """Measure a few optimizer steps after a warm-up.

    Return the seconds that each step takes, and the seconds of the warm-up. The warm-up creates the optimizer's state
    and compiles the loss, so its seconds do not count for any step.

    A step of many micro-steps could take minutes. So run only two micro-steps per step: the first, and the last with
    the optimizer's update. All micro-steps before the last take as long as the first:

        seconds = (n_micro_steps - 1) * first + last

    Args:
        model: the model on its device. The model is trained on random tokens; discard the model afterwards.
        compute_loss: a function that returns the loss of a micro-step from its tokens and targets, (B, T) each.
        optimizer: the optimizer of the model.
        batch_size: sequences per micro-step.
        n_micro_steps: micro-steps per optimizer step.
        is_bf16: whether to use autocast with bfloat16.
        least: minimum number of seconds to measure. At least MEASURED_STEPS steps are measured, too.
        most: number of seconds after which no other step starts. At least one step is measured, even if it takes
            longer.
        limit: number of seconds for the measurement and one step.
        is_compiled: whether compute_loss is compiled. Its code only suits micro-steps of batch_size sequences.

    Raises TooSlow as soon as it is certain that the limit is too short.
    """
    device = model.embedding.weight.device
    # Tokens and targets are slices of windows, as in a run. Compiled code depends on the strides of the tensors.
    shape = (batch_size, model.config.context_length + 1)
    windows = torch.randint(model.config.vocab_size, shape, device=device)  # (B, T + 1)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=is_bf16)
    model.train()

    def micro_step(windows: Tensor = windows) -> None:
        with autocast:
            loss = compute_loss(*split_windows(windows))
        (loss / n_micro_steps).backward()

    def last_micro_step(windows: Tensor = windows) -> None:
        micro_step(windows)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    def seconds_of(work: Callable[[], None]) -> float:
        began = clock(device.type)
        work()
        return clock(device.type) - began

    # One sequence is enough for a warm-up. A micro-step of a large model on a CPU can take longer than a short run.
    warmed_on = windows if is_compiled else windows[:1]  # (B, T + 1) or (1, T + 1)
    warm_up = seconds_of(partial(last_micro_step, warmed_on))

    times: list[float] = []
    spent: list[float] = []  # seconds of each measurement
    while not times or (sum(spent) < most and not has_enough(spent, least)):
        first = seconds_of(micro_step) if n_micro_steps > 1 else 0.0
        if not times and warm_up + first + n_micro_steps * first > limit:
            raise TooSlow(n_micro_steps * first)
        last = seconds_of(last_micro_step)
        times.append((n_micro_steps - 1) * first + last)
        spent.append(first + last)
    return times, warm_up


def has_enough(times: Sequence[float], least: float) -> bool:
    """Return whether there are at least MEASURED_STEPS times and the sum of the times is at least `least` seconds."""
    return len(times) >= MEASURED_STEPS and sum(times) >= least


def seconds_of_step(
    module: GPTModule, hardware: Hardware, *, seconds: float, limit: float = math.inf
) -> tuple[float, float]:
    """Measure optimizer steps on one device.

    Return the median number of seconds that a step takes, and the seconds of the warm-up. The warm-up compiles the loss
    if the module does so. A later module with the same settings uses the compiled code.

    This function trains the model of the module on random tokens; discard the module afterwards.

    Args:
        module: the model of the run, with its settings.
        hardware: the device and the precision of the run.
        seconds: planned time of the run. Measure for the fraction CHOSEN_SHARE of this time, but for at most
            CHOSEN_SECONDS. Start no step after the fraction MEASURED_SHARE of this time.
        limit: number of seconds for the measurement and one step.

    Raises TooSlow as soon as it is certain that the limit is too short.
    """
    settings = module.settings
    model = module.model.to(hardware.device)

    times, warm_up = times_of_steps(
        model,
        module.compute_loss,
        module.make_optimizer(model),
        batch_size=settings.micro_batch_size,
        n_micro_steps=settings.n_micro_steps,
        is_bf16=hardware.precision == "bf16",
        least=min(CHOSEN_SHARE * seconds, CHOSEN_SECONDS),
        most=MEASURED_SHARE * seconds,
        limit=limit,
        is_compiled=module.compiles,
    )
    return statistics.median(times), warm_up


def n_validation_tokens(store: TokenStore, settings: TrainerSettings) -> int:
    """Return the number of tokens per validation."""
    n_tokens = store.n_tokens("val")
    return min(n_tokens, settings.val_tokens or n_tokens)


def seconds_of_validation(seconds_a_step: float, *, tokens_a_step: int, n_val_tokens: int) -> float:
    """Return the estimated seconds of a validation. The arguments are the same as for steps_that_fit.

    A validation has no backward pass. So it takes a third of the time that training on the same number of tokens takes,
    plus the time for its sample.
    """
    return seconds_a_step * n_val_tokens / tokens_a_step / 3 + SAMPLED


def steps_that_fit(
    seconds: float, seconds_a_step: float, *, most: float, tokens_a_step: int, n_val_tokens: int
) -> tuple[int, int]:
    """Return how many steps and their validations fit into a time, and the number of steps between two validations.

    Args:
        seconds: time for all steps and validations.
        seconds_a_step: seconds per step.
        most: maximum number of steps of the run.
        tokens_a_step: number of training tokens per step.
        n_val_tokens: number of tokens per validation.
    """
    of_validation = seconds_of_validation(
        seconds_a_step, tokens_a_step=tokens_a_step, n_val_tokens=n_val_tokens
    )
    fitting = min(MOST_VALIDATIONS, VALIDATED_SHARE * seconds / of_validation)
    # A few validations show the trend of the loss, so they may take more of the time.
    fitting = max(fitting, min(MIN_VALIDATIONS, TREND_SHARE * seconds / of_validation))
    n_validations = max(1, int(fitting))
    n_steps = int(min(most, (seconds - n_validations * of_validation) / seconds_a_step))
    return n_steps, max(1, math.ceil(n_steps / n_validations))
