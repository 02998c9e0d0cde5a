"""Stop a run before its last step. A signal, the time limit, or too many bad steps in a row can stop a run."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import lightning as L
import torch

from gptmini.runs import has_checkpoint
from gptmini.system.errors import UserError
from gptmini.system.signals import FirstSignal
from gptmini.training.budget import timing
from gptmini.training.loggers.logger import log, print_line
from gptmini.training.module import GPTModule
from gptmini.training.step_reports import LATE_FROM, StepReport

# Number of windows in the line about a bad step. Eight windows are enough to find the text, and they fit into one line.
SHOWN = 8


class Stop(SystemExit):
    """An exception that Stopping raises to end a run on a signal, with the number of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@dataclass(frozen=True, kw_only=True)
class StopReason:
    """The reason why a training ended."""

    signal: int = 0  # number of the signal that stopped the run; 0: no signal
    late: bool = False  # whether the time limit stopped the run
    # Whether the run stopped between two steps. RunCheckpoints saves there if it is on.
    between_steps: bool = False
    # Calls the handler that the signal had before the run. Call this function after everything else is done.
    call_original_handler: Callable[[], None] = lambda: None

    @property
    def stopped_by(self) -> str | None:
        """The name of the signal that stopped the training, or "the time limit"; None if nothing stopped it."""
        if self.signal:
            return signal.Signals(self.signal).name
        return "the time limit" if self.late else None

    @property
    def code(self) -> int:
        """The exit code of the command."""
        return 128 + self.signal if self.signal else 0


class Stopping(L.Callback):
    """A callback that ends a run between two steps, on a signal or at the time limit.

    On a signal, this callback raises Stop, so the step is saved immediately. At the time limit, max_seconds from now,
    the run also validates its last step. Therefore this callback ends the run as soon as another step and a validation
    would not fit. Every run does at least one step and validates it.

    A Ctrl-C after an earlier signal raises KeyboardInterrupt immediately. If the launcher of a rank has ended, the rank
    ends as if it had received SIGTERM. A step with a non-finite loss or gradient is a bad step. The optimizer skips bad
    steps, and this callback logs them. After max_bad_steps bad steps in a row, this callback raises UserError.
    """

    def __init__(self, max_seconds: float | None, max_bad_steps: int) -> None:
        self.deadline: float | None = None
        if max_seconds is not None:
            self.deadline = time.monotonic() + max_seconds
        self.max_bad_steps = max_bad_steps
        self.signals = FirstSignal()
        self.late = False  # whether the run ends because of the time limit

        self._step = 0  # number of the current step
        self._step_began: float | None = None
        # Seconds of the latest step; None before the first step. The first step does not count if it compiles code.
        self._seconds_a_step: float | None = None
        # Seconds of the fastest step except the first; None before the second step.
        self._fastest_step: float | None = None
        self._is_warm = False  # whether this process has done a step
        self._validation_began: float | None = None  # None outside a validation
        # Seconds of the latest validation, including its samples and its checkpoints; None before the first validation.
        self._seconds_of_validation: float | None = None

        # Number of the process that started this rank; None for a run with one process.
        self._parent: int | None = None

    def fit_until_stopped(
        self, trainer: L.Trainer, module: GPTModule, data: L.LightningDataModule
    ) -> StopReason:
        """Train until the last step, or until a signal, the time limit or a callback stops the run."""
        try:
            with self.signals:
                trainer.fit(module, data)
        except Stop as stop:
            return StopReason(
                signal=stop.number, between_steps=True, call_original_handler=self._pass_on
            )
        except (SystemExit, KeyboardInterrupt):
            if not self.signals.number:
                raise
            # On a second Ctrl-C, Lightning raises SystemExit. It also raises SystemExit if a SIGTERM arrives before
            # on_train_start.
            return StopReason(signal=self.signals.number)

        # A callback such as EarlyStopping may have ended the run in the last validation.
        callbacks = trainer.callbacks  # pyrefly: ignore[missing-attribute]
        is_ended = any(getattr(callback, "stopping_reason_message", "") for callback in callbacks)
        if self.late and not is_ended:
            # A signal may have arrived during the last validation.
            return StopReason(
                signal=self.signals.number,
                late=not self.signals.number,
                between_steps=True,
                call_original_handler=self._pass_on,
            )
        return StopReason()

    def _pass_on(self) -> None:
        """Call the caller's handler of the signal, but not Python's own for Ctrl-C, which would print a traceback."""
        handler = self.signals.handlers_before.get(self.signals.number)
        if callable(handler) and handler is not signal.default_int_handler:
            handler(self.signals.number, None)

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Replace Lightning's handler of SIGTERM, and make the sanity check count as a validation.

        gptmini uses Lightning's sanity check to run a validation before the first step. See build_trainer. Callbacks
        such as EarlyStopping ignore a sanity check, so mark the trainer as validating. See Lightning's issue 20985.
        """
        self.signals.install()
        trainer.validating = True

    def on_fit_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Give the module the stop request of this rank. The module combines the requests of all ranks."""
        pl_module.stop_request = partial(self._own_request, pl_module)
        self._parent = os.getppid() if trainer.world_size > 1 else None

    def on_train_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Replace Lightning's signal handlers, and stop if a signal has already arrived.

        Do not check the time limit here, so that every run does at least one step.
        """
        self.signals.install()
        number, _ = self._own_request(pl_module)

        # All ranks stop before the first step if any rank received a signal.
        if trainer.world_size > 1:
            device = trainer.strategy.root_device
            asked = torch.tensor(number, dtype=torch.float32, device=device)
            number = int(trainer.strategy.reduce(asked, reduce_op="max"))
        _stop_if(number)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: GPTModule, batch: object, batch_idx: int
    ) -> None:
        """Start to time a step before its first micro-step. If a validation came before the step, end its time."""
        if batch_idx % trainer.accumulate_grad_batches != 0:
            return
        now = time.monotonic()
        if self._validation_began is not None:
            self._seconds_of_validation = now - self._validation_began
            self._validation_began = None
        self._step_began = now
        self._step = trainer.global_step + 1

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: GPTModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """After the last micro-step of a step, report bad steps, and stop on a signal or at the time limit."""
        step_done = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if not step_done:
            return
        assert self._step_began is not None  # on_train_batch_start has set it
        seconds = time.monotonic() - self._step_began
        if self._is_warm or not pl_module.compiles:
            self._seconds_a_step = seconds
        if self._is_warm:
            self._fastest_step = min(seconds, self._fastest_step or seconds)
        self._is_warm = True

        # All ranks must stop after the same step. The report of a step contains the stop requests of all ranks.
        if trainer.world_size == 1:
            number, late = self._own_request(pl_module)
        elif pl_module.step_reports.latest is not None:
            number = pl_module.step_reports.latest.signal
            late = pl_module.step_reports.latest.late
        else:
            number = 0
            late = False

        if number or late:
            pl_module.step_reports.wait()
        self._report_bad_steps(trainer, pl_module)
        _stop_if(number)
        if late and trainer.global_step < trainer.max_steps:
            self.late = True
            trainer.should_stop = True  # Lightning then validates this step and ends the run

    def on_validation_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Report bad steps before a validation, because the run ends after the last validation."""
        self._validation_began = time.monotonic()
        pl_module.step_reports.wait()
        self._report_bad_steps(trainer, pl_module)

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: GPTModule, *batch: object
    ) -> None:
        """Stop inside a validation on a signal. Several ranks do not, as they may have different numbers of batches."""
        if trainer.world_size == 1:
            number, _ = self._own_request(pl_module)
            _stop_if(number)

    def _own_request(self, pl_module: GPTModule) -> tuple[int, bool]:
        """Return the number of the signal (0: no signal), and whether no time is left for a step and a validation.

        Inside a validation, the second value says whether the time limit has passed.
        """
        is_orphan = self._parent is not None and os.getppid() != self._parent
        if is_orphan and not self.signals.number:
            self.signals.number = signal.SIGTERM
        late = False
        if self.deadline is not None:
            late = time.monotonic() + self._seconds_needed(pl_module) >= self.deadline
        return self.signals.number, late

    def _seconds_needed(self, pl_module: GPTModule) -> float:
        """Return the estimated seconds until the run can end with a validated step if it does one more step."""
        if self._seconds_a_step is None or self._validation_began is not None:
            return 0.0

        settings = pl_module.settings
        if self._seconds_of_validation is not None:
            of_validation = self._seconds_of_validation
        elif self._fastest_step is None:
            of_validation = 0.0  # unknown
        else:
            # A validation takes as long as many steps, so one slow step must not count for it.
            of_validation = timing.seconds_of_validation(self._fastest_step, pl_module)

        # A GPU runs one step behind the host. The ranks of several GPUs read a request to stop two steps later.
        n_steps = 1
        if pl_module.device.type in LATE_FROM:
            n_steps = 2 if pl_module.trainer.world_size == 1 else 4

        # The validation of the current step, if it is due, comes before the next step.
        n_validations = 2 if settings.validation_due(self._step) else 1
        return n_steps * self._seconds_a_step + n_validations * of_validation

    def _report_bad_steps(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        while pl_module.step_reports.unreported:
            bad = pl_module.step_reports.unreported.pop(0)
            step = bad.step
            values = f"loss {bad.loss:.4g}, gradient norm {bad.grad_norm:.4g}"

            log(trainer, {"train/bad_steps": bad.bad_steps}, step=step)
            # Lightning sets trainer.datamodule in a different class, so the type checker does not know this attribute.
            data = trainer.datamodule  # pyrefly: ignore[missing-attribute]
            starts = data.starts(step - 1)
            windows = ", ".join(map(str, starts[:SHOWN])) + (" ..." if len(starts) > SHOWN else "")
            print_line(
                trainer,
                f"step {step} skipped: {values}; the windows of this step start at tokens {windows} of train.bin",
            )
            if bad.bad_steps_in_a_row >= self.max_bad_steps:
                self._give_up(trainer, bad, values)

    def _give_up(self, trainer: L.Trainer, bad: StepReport, values: str) -> None:
        is_saved = has_checkpoint(Path(trainer.default_root_dir))
        saved = "the latest checkpoint" if is_saved else "no checkpoint"
        line = (
            f"{bad.bad_steps_in_a_row} steps in a row had a non-finite loss or gradient "
            f"(at step {bad.step}: {values}); {saved} was saved before these steps"
        )
        print_line(trainer, line)
        raise UserError(
            f"{line}; start a new run with a lower optimizer.lr, or check the text of these steps"
        )


def _stop_if(number: int) -> None:
    if number:
        raise Stop(number)
