"""Stop a run before its last step: on a signal, at the time limit, or after too many non-finite steps."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch

from gptmini.runs import has_checkpoint
from gptmini.training.loggers.logger import log, print_line
from gptmini.training.module import GPTModule
from gptmini.training.step_reports import StepReport
from gptmini.user_error import UserError

# Number of windows in the line about a bad step. They are enough to find the text, and they fit into one line.
SHOWN = 8
# These signals stop a run after its current step. The step is saved. Windows does not have the last three signals. A
# closing terminal sends SIGHUP. Slurm announces a job's time limit with SIGUSR1, SIGUSR2 or SIGTERM.
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


class Stop(SystemExit):
    """Raised by Stopping to end a run between two steps, and caught outside the training loop.

    number is the signal's number; 0 means the time limit.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@dataclass(frozen=True, kw_only=True)
class StopReason:
    """How a training ended."""

    signal: int = 0  # number of the signal that stopped the run; 0: no signal
    late: bool = False  # whether the time limit stopped the run
    between_steps: bool = (
        False  # whether the run stopped between two steps; RunCheckpoints saves there if it is on
    )
    # Calls the handler that the signal had before the run. Call this function last.
    call_original_handler: Callable[[], None] = lambda: None

    @property
    def stopped_by(self) -> str | None:
        """What stopped the training: a signal's name or "the time limit"; None if nothing stopped it."""
        if self.signal:
            return signal.Signals(self.signal).name
        return "the time limit" if self.late else None

    @property
    def code(self) -> int:
        """Exit code of the command."""
        return 128 + self.signal if self.signal else 0


class Stopping(L.Callback):
    """A callback that ends a run between two steps by raising Stop, on a signal or at the time limit.

    A Ctrl-C after an earlier signal raises KeyboardInterrupt immediately. If the launcher of a rank is gone, the rank
    ends as if it had received SIGTERM. A step with a non-finite loss or gradient is a bad step. The optimizer skips bad
    steps, and they are logged. Too many bad steps in a row raise UserError.

    Args:
        max_seconds: time limit, counted from now; None for no limit.
        max_bad_steps: raise UserError after this many bad steps in a row.
    """

    def __init__(self, max_seconds: float | None, max_bad_steps: int) -> None:
        self.deadline: float | None = None
        if max_seconds is not None:
            self.deadline = time.monotonic() + max_seconds
        self.max_bad_steps = max_bad_steps
        self.signal = 0  # number of the first signal received; 0: no signal
        self._handlers_before: dict[int, Any] = {}  # signal handlers from before the run
        # Process that started this rank; None for a run with one process.
        self._parent: int | None = None

    def fit_until_stopped(
        self, trainer: L.Trainer, module: GPTModule, data: L.LightningDataModule
    ) -> StopReason:
        """Train until the last step, or until a signal, the time limit or a callback stops the run."""
        try:
            with self.catch_signals():
                trainer.fit(module, data)
        except Stop as stop:
            return StopReason(
                signal=stop.number,
                late=not stop.number,
                between_steps=True,
                call_original_handler=self._pass_on,
            )
        except (SystemExit, KeyboardInterrupt):
            if not self.signal:
                raise
            # Lightning turns a second Ctrl-C into SystemExit. It also raises SystemExit for a SIGTERM before
            # on_train_start.
            return StopReason(signal=self.signal)
        return StopReason()

    @contextmanager
    def catch_signals(self) -> Iterator[None]:
        """Catch the signals inside the with block, then restore their handlers."""
        # Python allows signal handlers only in the main thread.
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        self._handlers_before = {number: signal.getsignal(number) for number in stop_signals()}
        self._install_handlers()
        try:
            yield
        finally:
            for number, handler in self._handlers_before.items():
                signal.signal(number, handler)

    def _pass_on(self) -> None:
        """Call the calling program's own handler of the signal that stopped the run.

        Do not call Python's default handler of Ctrl-C. It would end a cleanly stopped run with a traceback.
        """
        handler = self._handlers_before.get(self.signal)
        if callable(handler) and handler is not signal.default_int_handler:
            handler(self.signal, None)

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Replace Lightning's handler of SIGTERM, and make the sanity check count as a validation.

        gptmini uses Lightning's sanity check for a validation before the first step, see build_trainer. Callbacks such
        as EarlyStopping ignore a sanity check, so mark the trainer as validating (Lightning's issue 20985).
        """
        self._install_handlers()
        trainer.validating = True

    def on_fit_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Give the module this rank's stop request, because all ranks must stop together."""
        pl_module.stop_request = self._own_request
        self._parent = os.getppid() if trainer.world_size > 1 else None

    def on_train_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Replace Lightning's handlers, and stop if a signal arrived earlier. A time limit allows at least one step."""
        self._install_handlers()
        number, _ = self._own_request()

        # All ranks stop before the first step if any rank received a signal.
        if trainer.world_size > 1:
            device = trainer.strategy.root_device
            asked = torch.tensor(number, dtype=torch.float32, device=device)
            number = int(trainer.strategy.reduce(asked, reduce_op="max"))
        _stop_if(number, late=False)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: GPTModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Between two steps, report bad steps, and stop on a signal or at the time limit."""
        step_done = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if not step_done:
            return

        # All ranks must stop after the same step. The outcome of a step contains the stop requests of all ranks.
        if trainer.world_size == 1:
            number, late = self._own_request()
        elif pl_module.step_reports.latest is not None:
            number = pl_module.step_reports.latest.signal
            late = pl_module.step_reports.latest.late
        else:
            number = 0
            late = False

        if number or late:
            pl_module.step_reports.wait()
        self._report_bad_steps(trainer, pl_module)
        _stop_if(number, late=late)

    def on_validation_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Report bad steps before a validation, because the run ends after the last validation."""
        pl_module.step_reports.wait()
        self._report_bad_steps(trainer, pl_module)

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: GPTModule, *batch: object
    ) -> None:
        """Stop inside a validation. A resumed run repeats the validation.

        A run with several ranks does not stop here, because the ranks may have different numbers of batches.
        """
        if trainer.world_size == 1:
            number, late = self._own_request()
            _stop_if(number, late=late)

    def _own_request(self) -> tuple[int, bool]:
        """Return this process's stop request: the signal number (0: no signal), and whether its time is over."""
        is_orphan = self._parent is not None and os.getppid() != self._parent
        if is_orphan and not self.signal:
            self.signal = signal.SIGTERM
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return self.signal, late

    def _install_handlers(self) -> None:
        for number in self._handlers_before:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Store the first signal. A Ctrl-C after any signal ends the run immediately."""
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.signal:
            self.signal = number

    def _report_bad_steps(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Log each new bad step. Raise UserError after max_bad_steps in a row."""
        while pl_module.step_reports.unreported:
            bad = pl_module.step_reports.unreported.pop(0)
            step = bad.step
            values = f"loss {bad.loss:.4g}, gradient norm {bad.grad_norm:.4g}"

            log(trainer, {"train/bad_steps": bad.bad_steps}, step=step)
            # Lightning sets this attribute in another class. The type checker does not see this.
            data = trainer.datamodule  # pyrefly: ignore[missing-attribute]
            starts = data.starts(step - 1)
            windows = ", ".join(map(str, starts[:SHOWN])) + (" ..." if len(starts) > SHOWN else "")
            print_line(
                trainer,
                f"step {step} skipped: {values}; its windows start at tokens {windows} of train.bin",
            )
            if bad.bad_steps_in_a_row >= self.max_bad_steps:
                self._give_up(trainer, bad, values)

    def _give_up(self, trainer: L.Trainer, bad: StepReport, values: str) -> None:
        """Raise UserError because too many steps in a row were not finite."""
        is_saved = has_checkpoint(Path(trainer.default_root_dir))
        kept = (
            "the latest checkpoint is from before these steps"
            if is_saved
            else "no checkpoint was saved before these steps"
        )
        line = (
            f"{bad.bad_steps_in_a_row} steps in a row had a non-finite loss or gradient, "
            f"and the last was step {bad.step} ({values}); {kept}"
        )
        print_line(trainer, line)
        raise UserError(
            f"{line}; start a new run with a lower optimizer.lr, or check the text of these steps"
        )


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop a run, except signals that this system does not have or that the process ignores.

    The command nohup makes a process ignore SIGHUP. A shell makes background processes ignore SIGINT.
    """
    known = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    return [number for number in known if signal.getsignal(number) != signal.SIG_IGN]


def _stop_if(number: int, *, late: bool) -> None:
    """Raise Stop if number is a signal (0: no signal), or if the time is over."""
    if number or late:
        raise Stop(number)
