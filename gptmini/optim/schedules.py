"""Learning rate, as a multiple of its peak: pure functions of the optimizer step.

A schedule takes (step, *, max_steps, warmup_steps, final_fraction), and trapezoid decay_fraction: step counts from 0,
warm-up rises linearly to 1 over warmup_steps, and the decay ends at final_fraction on the last step; steps past the end
stay there. A run that is over before its warm-up, or one step after it, only rises.
"""

import math

from gptmini.checks import number, whole


def cosine(step: int, *, max_steps: int, warmup_steps: int, final_fraction: float) -> float:
    """Half a cosine from 1 to final_fraction (Loshchilov and Hutter 2017, without restarts)."""
    done = _progress(step, max_steps, warmup_steps)
    fall = final_fraction + (1 - final_fraction) * 0.5 * (1 + math.cos(math.pi * done))
    return _warmup(step, warmup_steps) * fall


def linear(step: int, *, max_steps: int, warmup_steps: int, final_fraction: float) -> float:
    """A straight line from 1 to final_fraction."""
    done = _progress(step, max_steps, warmup_steps)
    return _warmup(step, warmup_steps) * (1 - (1 - final_fraction) * done)


def trapezoid(step: int, *, max_steps: int, warmup_steps: int, final_fraction: float, decay_fraction: float) -> float:
    """Flat at 1, then a straight line to final_fraction over the last decay_fraction of steps (Hägele et al. 2024)."""
    done = _progress(step, max_steps, max(warmup_steps, max_steps - 1 - round(decay_fraction * max_steps)))
    return _warmup(step, warmup_steps) * (1 - (1 - final_fraction) * done)


def check(*, warmup_steps: int, final_fraction: float, decay_fraction: float = 0.0) -> None:
    """Raise UserError unless each is of the right type and range."""
    number("final_fraction", final_fraction, least=0, most=1)
    number("decay_fraction", decay_fraction, least=0, most=1)
    whole("warmup_steps", warmup_steps, least=0)


def _warmup(step: int, warmup_steps: int) -> float:
    return min(1.0, (step + 1) / (warmup_steps + 1))


def _progress(step: int, max_steps: int, start: int) -> float:
    """Share of the decay that is done: 0 until start, 1 from the last step on."""
    return min(1.0, max(0.0, (step - start) / max(1, max_steps - 1 - start)))
