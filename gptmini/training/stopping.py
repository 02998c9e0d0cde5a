"""Why a run ends before its last step: a signal, a time limit, or numbers that are no longer finite."""

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
from gptmini.training.loggers.logger import log, say
from gptmini.training.module import GPTModule
from gptmini.training.outcomes import Outcome
from gptmini.user_error import UserError

SHOWN = 8  # windows of a bad step that its line names: enough to find the text, and still one line
# The signals that end a run once its step is done and saved; Windows lacks the last three. A terminal that is closed
# sends SIGHUP. Slurm announces the end of a job's time with SIGUSR1, SIGUSR2 or SIGTERM.
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


class Stop(SystemExit):
    """The request to end a run between two steps, raised by Stopping and caught when training has been left.

    number is that of the signal that has come; 0 says that the time is over.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a training ended."""

    signal: int = 0  # number of the signal that has stopped it; 0 for none
    late: bool = False  # whether the time limit has stopped it
    saved: bool = False  # whether a checkpoint was to be saved at the step at which it stopped
    # Calls the handler that the signal which has stopped the run had before the run; to be called last.
    pass_on: Callable[[], None] = lambda: None

    @property
    def stopped_by(self) -> str | None:
        """What has stopped the training, in words: a signal's name or the time limit; None if nothing has."""
        if self.signal:
            return signal.Signals(self.signal).name
        return "the time limit" if self.late else None

    @property
    def code(self) -> int:
        """Exit code of the command."""
        return 128 + self.signal if self.signal else 0


class Stopping(L.Callback):
    """Ends a run between two steps by raising Stop, when a signal has come or the time is over.

    A Ctrl-C while the running step is still being finished raises KeyboardInterrupt at once. A rank whose launcher is
    gone ends as if it had been sent SIGTERM. Bad steps, which were not applied because their loss or gradient was not
    finite, are logged, and too many in a row raise UserError.

    Args:
        max_seconds: time from now on after which to stop; None for no limit.
        max_bad_steps: number of bad steps in a row that raises UserError.
    """

    def __init__(self, max_seconds: float | None, max_bad_steps: int) -> None:
        self.deadline: float | None = None
        if max_seconds is not None:
            self.deadline = time.monotonic() + max_seconds
        self.max_bad_steps = max_bad_steps
        self.signal = 0  # number of the first signal that came; 0 for none
        self._handlers_before: dict[int, Any] = {}  # what each signal did before the run
        # The process that has started this rank; None for a run of one process.
        self._parent: int | None = None

    def fit_until_stopped(
        self, trainer: L.Trainer, module: GPTModule, data: L.LightningDataModule
    ) -> Ending:
        """Train until the last step, or until a signal, the time limit or a callback ends the run."""
        try:
            with self.listening():
                trainer.fit(module, data)
        except Stop as stop:
            return Ending(
                signal=stop.number,
                late=not stop.number,
                saved=True,
                pass_on=self._pass_on,
            )
        except (SystemExit, KeyboardInterrupt):
            if not self.signal:
                raise
            # Lightning turns a second Ctrl-C into SystemExit, and raises its own for a SIGTERM before on_train_start.
            return Ending(signal=self.signal)
        return Ending()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals until the end of the block, after which they do what they did before."""
        # Python allows signal handlers in the main thread alone.
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        self._handlers_before = {number: signal.getsignal(number) for number in heeded_signals()}
        self._listen()
        try:
            yield
        finally:
            for number, handler in self._handlers_before.items():
                signal.signal(number, handler)

    def _pass_on(self) -> None:
        """Call the handler that a calling program had for the signal which has stopped the run.

        Python's own handler of Ctrl-C is not called, because it would turn the run's orderly end into a traceback.
        """
        handler = self._handlers_before.get(self.signal)
        if callable(handler) and handler is not signal.default_int_handler:
            handler(self.signal, None)

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Listen again after Lightning has put its own handler of SIGTERM in place, and let the validation count.

        What Lightning calls a sanity check is the validation that the run was stopped before. Callbacks such as
        EarlyStopping leave out a sanity check, so the trainer is marked as validating (Lightning's issue 20985).
        """
        self._listen()
        trainer.validating = True

    def on_fit_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Tell the module where to ask what this rank was asked, because several ranks must stop together."""
        pl_module.stop_request = self._own_request
        self._parent = os.getppid() if trainer.world_size > 1 else None

    def on_train_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Listen again, and stop if a signal came before the first step; a time limit allows at least one step."""
        self._listen()
        number, _ = self._own_request()

        # All ranks stop before the first step, whichever of them was sent the signal.
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
        """Between two steps, tell of bad steps, and stop if a signal came or the time is over."""
        step_done = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if not step_done:
            return

        # All ranks must stop after the same step, so they go by an outcome, which holds what any of them was asked.
        if trainer.world_size == 1:
            number, late = self._own_request()
        elif pl_module.outcomes.newest is not None:
            number = pl_module.outcomes.newest.signal
            late = pl_module.outcomes.newest.late
        else:
            number = 0
            late = False

        if number or late:
            pl_module.outcomes.settle()
        self._tell(trainer, pl_module)
        _stop_if(number, late=late)

    def on_validation_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Tell of bad steps before a validation, because after the last validation the run ends."""
        pl_module.outcomes.settle()
        self._tell(trainer, pl_module)

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: GPTModule, *batch: object
    ) -> None:
        """Stop amid a validation, which a resumed run repeats; not on several ranks, whose shares are unequal."""
        if trainer.world_size == 1:
            number, late = self._own_request()
            _stop_if(number, late=late)

    def _own_request(self) -> tuple[int, bool]:
        """Return what this process was asked: the number of a signal, 0 for none, and whether its time is over."""
        is_orphan = self._parent is not None and os.getppid() != self._parent
        if is_orphan and not self.signal:
            self.signal = signal.SIGTERM
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return self.signal, late

    def _listen(self) -> None:
        for number in self._handlers_before:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: keep the number of the first one; a Ctrl-C after any signal ends the run at once."""
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.signal:
            self.signal = number

    def _tell(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Log each bad step that no logger was told of yet; UserError after max_bad_steps in a row."""
        while pl_module.outcomes.untold:
            bad = pl_module.outcomes.untold.pop(0)
            step = bad.step
            figures = f"loss {bad.loss:.4g}, gradient norm {bad.grad_norm:.4g}"

            log(trainer, {"train/bad_steps": bad.bad_steps}, step=step)
            # Lightning sets this attribute from another class, where the type checker does not look.
            data = trainer.datamodule  # pyrefly: ignore[missing-attribute]
            starts = data.starts(step - 1)[:SHOWN]
            windows = ", ".join(map(str, starts))
            say(
                trainer,
                f"step {step} not applied: {figures}; "
                f"its windows begin at tokens {windows} ... of train.bin",
            )
            if bad.bad_steps_in_a_row >= self.max_bad_steps:
                self._give_up(trainer, bad, figures)

    def _give_up(self, trainer: L.Trainer, bad: Outcome, figures: str) -> None:
        """Raise UserError: too many steps in a row were not finite."""
        is_saved = has_checkpoint(Path(trainer.default_root_dir))
        kept = (
            "the newest checkpoint is from before them"
            if is_saved
            else "nothing was saved before them"
        )
        line = (
            f"{bad.bad_steps_in_a_row} steps in a row, to step {bad.step}, "
            f"had a loss or gradient that is not finite ({figures}); {kept}"
        )
        say(trainer, line)
        raise UserError(
            f"{line}; start anew with a lower optimizer.lr, or look at the text of these windows"
        )


def heeded_signals() -> list[signal.Signals]:
    """The signals that end a run: those that this system has, and that are not turned off.

    The command nohup turns SIGHUP off, and a shell turns SIGINT off for what it starts in the background.
    """
    known = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    return [number for number in known if signal.getsignal(number) != signal.SIG_IGN]


def _stop_if(number: int, *, late: bool) -> None:
    """Raise Stop if a signal of this number came (0: none did), or if the time is over."""
    if number or late:
        raise Stop(number)
