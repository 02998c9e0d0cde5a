"""The time limit of a run: whether another step and its validation would still end in time."""

import time

from gptmini.training.budget import timing
from gptmini.training.module import GPTModule
from gptmini.training.step_reports import LATE_FROM


class Deadline:
    """The time limit of a run. It times steps and validations, to predict how long one more of them would take."""

    def __init__(self, seconds: float | None) -> None:
        """Set the limit to `seconds` from now. None means no limit."""
        self._end = None if seconds is None else time.monotonic() + seconds
        self._step = 0  # number of the current step
        self._step_began = 0.0
        # Seconds of the latest step; None before the first step. The first step does not count if it compiles code.
        self._seconds_a_step: float | None = None
        # Seconds of the fastest step except the first; None before the second step.
        self._fastest_step: float | None = None
        self._is_warm = False  # whether this process has done a step
        self._validation_began: float | None = None  # None outside a validation
        # Seconds of the latest validation, including its samples and its checkpoints; None before the first validation.
        self._seconds_of_validation: float | None = None

    def begin_step(self, step: int) -> None:
        """Start to time a step. If a validation came before the step, end its time."""
        now = time.monotonic()
        if self._validation_began is not None:
            self._seconds_of_validation = now - self._validation_began
            self._validation_began = None
        self._step_began = now
        self._step = step

    def end_step(self, *, compiles: bool) -> None:
        """End the time of a step. The first step of a process may compile code."""
        seconds = time.monotonic() - self._step_began
        if self._is_warm or not compiles:
            self._seconds_a_step = seconds
        if self._is_warm:
            self._fastest_step = min(seconds, self._fastest_step or seconds)
        self._is_warm = True

    def begin_validation(self) -> None:
        """Start to time a validation."""
        self._validation_began = time.monotonic()

    def is_near(self, module: GPTModule) -> bool:
        """Return whether no time is left for another step and its validation.

        Inside a validation, return whether the time limit has passed.
        """
        if self._end is None:
            return False
        return time.monotonic() + self._seconds_needed(module) >= self._end

    def _seconds_needed(self, module: GPTModule) -> float:
        """Return the estimated seconds until the run can end with a validated step if it does one more step."""
        if self._seconds_a_step is None or self._validation_began is not None:
            return 0.0

        if self._seconds_of_validation is not None:
            of_validation = self._seconds_of_validation
        elif self._fastest_step is None:
            of_validation = 0.0  # unknown
        else:
            # A validation takes as long as many steps, so one slow step must not count for it.
            of_validation = timing.seconds_of_validation(self._fastest_step, module)

        # A GPU runs one step behind the host. The ranks of several GPUs read a request to stop two steps later.
        n_steps = 1
        if module.device.type in LATE_FROM:
            n_steps = 2 if module.trainer.world_size == 1 else 4

        # The validation of the current step, if it is due, comes before the next step.
        n_validations = 2 if module.settings.validation_due(self._step) else 1
        return n_steps * self._seconds_a_step + n_validations * of_validation
