"""Stop a run before its last step, on a signal or at the time limit."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import lightning as L
import torch

from gptmini.system.signals import FirstSignal
from gptmini.training.deadline import Deadline
from gptmini.training.module import GPTModule


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
    ends as if it had received SIGTERM.
    """

    def __init__(self, max_seconds: float | None) -> None:
        self.signals = FirstSignal()
        self.deadline = Deadline(max_seconds)
        self.late = False  # whether the run ends because of the time limit
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
            number = stop.number
        except (SystemExit, KeyboardInterrupt):
            if not self.signals.number:
                raise
            # On a second Ctrl-C, Lightning raises SystemExit. It also raises SystemExit if a SIGTERM arrives before
            # on_train_start.
            return StopReason(signal=self.signals.number)
        else:
            # A callback such as EarlyStopping may have ended the run in the last validation.
            callbacks = trainer.callbacks  # pyrefly: ignore[missing-attribute]
            is_ended = any(getattr(each, "stopping_reason_message", "") for each in callbacks)
            if is_ended or not self.late:
                return StopReason()
            number = self.signals.number  # a signal may have arrived during the last validation

        return StopReason(
            signal=number,
            late=not number,
            between_steps=True,
            call_original_handler=self._call_original_handler,
        )

    def _call_original_handler(self) -> None:
        """Call the handler that the signal had before the run, except Python's, which would print a traceback."""
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
        pl_module.stop_request = partial(self._request, pl_module)
        self._parent = os.getppid() if trainer.world_size > 1 else None

    def on_train_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Replace Lightning's signal handlers, and stop if a signal has already arrived.

        Do not check the time limit here, so that every run does at least one step.
        """
        self.signals.install()
        number, _ = self._request(pl_module)

        # All ranks stop before the first step if any rank received a signal.
        if trainer.world_size > 1:
            device = trainer.strategy.root_device
            request = torch.tensor(number, dtype=torch.float32, device=device)
            number = int(trainer.strategy.reduce(request, reduce_op="max"))
        _stop_if(number)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: GPTModule, batch: object, batch_idx: int
    ) -> None:
        """Start to time a step before its first micro-step."""
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self.deadline.begin_step(trainer.global_step + 1)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: GPTModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """After the last micro-step of a step, stop on a signal or at the time limit."""
        step_done = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if not step_done:
            return
        self.deadline.end_step(compiles=pl_module.hardware.compile)

        number, late = self._request(pl_module)
        if trainer.world_size > 1:
            # All ranks must stop after the same step. The report of a step contains the stop requests of all ranks.
            report = pl_module.step_reports.latest
            number, late = (0, False) if report is None else (report.signal, report.late)
        _stop_if(number)
        if late and trainer.global_step < trainer.max_steps:
            self.late = True
            trainer.should_stop = True  # Lightning then validates this step and ends the run

    def on_validation_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Start to time a validation."""
        self.deadline.begin_validation()

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: GPTModule, *batch: object
    ) -> None:
        """Stop inside a validation on a signal. Several ranks wait for its end, because their batches may differ."""
        if trainer.world_size == 1:
            number, _ = self._request(pl_module)
            _stop_if(number)

    def _request(self, pl_module: GPTModule) -> tuple[int, bool]:
        """Return the stop request of this rank: the number of the signal (0: no signal), and Deadline.is_near."""
        is_orphan = self._parent is not None and os.getppid() != self._parent
        if is_orphan and not self.signals.number:
            self.signals.number = signal.SIGTERM
        return self.signals.number, self.deadline.is_near(pl_module)


def _stop_if(number: int) -> None:
    if number:
        raise Stop(number)
