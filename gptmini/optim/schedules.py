"""Learning rate schedules: pure functions from an optimizer step to a multiple of the peak learning rate.

A schedule takes a step, counted from 0, and max_steps, the number of steps of the run. If the run ends during warm-up,
or one step after it, the rate only rises.
"""

import math

from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass

from gptmini.settings import STRICT, Fraction


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _WarmedUp:
    """The base class of schedules: warm-up and final value."""

    # The multiple rises linearly over these steps and is 1 on the next step.
    warmup_steps: NonNegativeInt
    final_fraction: Fraction  # multiple on the last step of the run, and on any later step

    def _warmup(self, step: int) -> float:
        """Return the warm-up factor: a linear rise to 1 at step warmup_steps."""
        return min(1.0, (step + 1) / (self.warmup_steps + 1))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CosineSchedule(_WarmedUp):
    """Fall from 1 to final_fraction along half a cosine (Loshchilov and Hutter 2017, without restarts)."""

    def __call__(self, step: int, *, max_steps: int) -> float:
        """Return the multiple of the peak learning rate."""
        done = _progress(step, max_steps, self.warmup_steps)
        fall = self.final_fraction + (1 - self.final_fraction) * 0.5 * (
            1 + math.cos(math.pi * done)
        )
        return self._warmup(step) * fall


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LinearSchedule(_WarmedUp):
    """Fall from 1 to final_fraction along a straight line."""

    def __call__(self, step: int, *, max_steps: int) -> float:
        """Return the multiple of the peak learning rate."""
        done = _progress(step, max_steps, self.warmup_steps)
        fall = 1 - (1 - self.final_fraction) * done
        return self._warmup(step) * fall


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrapezoidSchedule(_WarmedUp):
    """Stay at 1, then fall to final_fraction along a straight line over the last decay_fraction of all steps.

    Source: Hägele et al. 2024.
    """

    decay_fraction: Fraction

    def __call__(self, step: int, *, max_steps: int) -> float:
        """Return the multiple of the peak learning rate."""
        decay_steps = round(self.decay_fraction * max_steps)
        decay_start = max(self.warmup_steps, max_steps - 1 - decay_steps)
        done = _progress(step, max_steps, decay_start)
        fall = 1 - (1 - self.final_fraction) * done
        return self._warmup(step) * fall


def _progress(step: int, max_steps: int, start: int) -> float:
    """Return the completed fraction of the decay: 0 until step start, 1 at the last step of the run and later."""
    fraction = (step - start) / max(1, max_steps - 1 - start)
    return min(1.0, max(0.0, fraction))
