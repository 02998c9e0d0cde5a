"""Learning rate schedules. A schedule is a pure function that maps a step to a multiple of the peak learning rate.

A schedule takes the number of an optimizer step, counted from 0, and max_steps, the number of steps of the run. If the
run ends during warm-up, or one step after the warm-up, the learning rate only rises.
"""

import math

from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass

from gptmini.settings import STRICT, Fraction


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _Schedule:
    # The multiple rises linearly over this number of steps. It is 1 at the next step.
    warmup_steps: NonNegativeInt
    final_fraction: Fraction  # multiple at the last step of the run, and at any later step

    def __call__(self, step: int, *, max_steps: int) -> float:
        """Return the multiple of the peak learning rate."""
        warmup = min(1.0, (step + 1) / (self.warmup_steps + 1))
        return warmup * self._fall(step, max_steps)

    def _fall(self, step: int, max_steps: int) -> float:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CosineSchedule(_Schedule):
    """A schedule that falls from 1 to final_fraction along half a period of a cosine, without restarts.

    Source: Loshchilov and Hutter 2017.
    """

    def _fall(self, step: int, max_steps: int) -> float:
        progress = _progress(step, max_steps, self.warmup_steps)
        cosine = 1 + math.cos(math.pi * progress)
        return self.final_fraction + (1 - self.final_fraction) * 0.5 * cosine


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LinearSchedule(_Schedule):
    """A schedule that falls from 1 to final_fraction along a straight line."""

    def _fall(self, step: int, max_steps: int) -> float:
        return 1 - (1 - self.final_fraction) * _progress(step, max_steps, self.warmup_steps)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrapezoidSchedule(_Schedule):
    """A schedule that stays at 1, and then falls to final_fraction along a straight line.

    The fall takes the fraction decay_fraction of all steps, at the end of the run.
    Source: Hägele et al. 2024.
    """

    decay_fraction: Fraction

    def _fall(self, step: int, max_steps: int) -> float:
        decay_steps = round(self.decay_fraction * max_steps)
        decay_start = max(self.warmup_steps, max_steps - 1 - decay_steps)
        return 1 - (1 - self.final_fraction) * _progress(step, max_steps, decay_start)


def _progress(step: int, max_steps: int, start: int) -> float:
    fraction = (step - start) / max(1, max_steps - 1 - start)
    return min(1.0, max(0.0, fraction))  # 0 until step start, and 1 from the last step of the run
