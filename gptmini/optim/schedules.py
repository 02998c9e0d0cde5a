"""Schedules of the learning rate: pure functions that map an optimizer step to a multiple of the peak rate.

Every schedule takes these arguments:
    step: optimizer step, counted from 0.
    max_steps: number of steps of the run.
    warmup_steps: the multiple rises linearly over these steps and is 1 on the next one.
    final_fraction: multiple on the last step of the run, and on any step after it.

A run that ends before its warm-up, or one step after it, only rises.
"""

import math

from gptmini.checks import number, whole


def cosine(step: int, *, max_steps: int, warmup_steps: int, final_fraction: float) -> float:
    """Fall from 1 to final_fraction along half a cosine (Loshchilov and Hutter 2017, without restarts)."""
    done = _progress(step, max_steps, warmup_steps)
    fall = final_fraction + (1 - final_fraction) * 0.5 * (1 + math.cos(math.pi * done))
    return _warmup(step, warmup_steps) * fall


def linear(step: int, *, max_steps: int, warmup_steps: int, final_fraction: float) -> float:
    """Fall from 1 to final_fraction along a straight line."""
    done = _progress(step, max_steps, warmup_steps)
    fall = 1 - (1 - final_fraction) * done
    return _warmup(step, warmup_steps) * fall


def trapezoid(
    step: int,
    *,
    max_steps: int,
    warmup_steps: int,
    final_fraction: float,
    decay_fraction: float,
) -> float:
    """Stay at 1, then fall to final_fraction along a straight line over the last decay_fraction of all steps.

    Source: Hägele et al. 2024.
    """
    decay_steps = round(decay_fraction * max_steps)
    decay_start = max(warmup_steps, max_steps - 1 - decay_steps)
    done = _progress(step, max_steps, decay_start)
    fall = 1 - (1 - final_fraction) * done
    return _warmup(step, warmup_steps) * fall


def check(*, warmup_steps: int, final_fraction: float, decay_fraction: float = 0.0) -> None:
    """Raise UserError unless each argument of a schedule is of the right type and range."""
    number("final_fraction", final_fraction, least=0, most=1)
    number("decay_fraction", decay_fraction, least=0, most=1)
    whole("warmup_steps", warmup_steps, least=0)


def _warmup(step: int, warmup_steps: int) -> float:
    """Rise linearly to 1, which is reached at warmup_steps."""
    return min(1.0, (step + 1) / (warmup_steps + 1))


def _progress(step: int, max_steps: int, start: int) -> float:
    """Share of the decay that is done: 0 up to step start, 1 from the last step of the run on."""
    share = (step - start) / max(1, max_steps - 1 - start)
    return min(1.0, max(0.0, share))
