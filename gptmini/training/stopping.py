"""Why a run ends before its last step: a signal, a time limit, or numbers that are no longer finite."""

import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import lightning as L
import torch

from gptmini.checks import UserError
from gptmini.training.checkpointing import Stop
from gptmini.training.module import GPTModule
from gptmini.training.monitoring.logger import log, say
from gptmini.training.outcomes import BadStep

SHOWN = 8  # windows of a bad step that are named
SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1")  # those that the system has


@dataclass(frozen=True)
class Ending:
    """How a training ended."""

    reason: str | None = None  # a signal's name or the time limit; None: it came to its end
    code: int = 0  # exit code of the command
    saved: bool = False  # whether the step at which it stopped was to be saved


class Stopping(L.Callback):
    """Lets the running step finish, then raises Stop; a Ctrl-C after that raises KeyboardInterrupt at once."""

    def __init__(self, max_seconds: float | None, max_bad_steps: int) -> None:
        """Stop after max_seconds from now (None: no limit), and after so many bad steps in a row."""
        self.deadline = None if max_seconds is None else time.monotonic() + max_seconds
        self.max_bad_steps = max_bad_steps
        self.signal = 0  # number of the first that came
        self._numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]

    def fit(self, trainer: L.Trainer, module: GPTModule, data: L.LightningDataModule) -> Ending:
        """Train until the last step, or until a signal, the time limit or a callback ends the run."""
        try:
            with self.listening():
                trainer.fit(module, data)
        except Stop as stop:
            return Ending(reason=stop.reason, code=stop.code, saved=True)
        except (SystemExit, KeyboardInterrupt):  # Lightning leaves so on a second Ctrl-C, or a signal before it listens
            return Ending(reason="a signal, at once,", code=128 + self.signal)
        return Ending()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals until the end of the block, where they do again what they did before."""
        if threading.current_thread() is not threading.main_thread():  # Python hears signals in that one alone
            yield
            return
        before = {number: signal.getsignal(number) for number in self._numbers}
        self._listen()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Listen again: Lightning has put its own answer to SIGTERM in place.

        The check is the validation that the run was stopped before. It counts for callbacks such as EarlyStopping,
        which leave out what Lightning calls a sanity check.
        """
        self._listen()
        trainer.validating = True

    def on_fit_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Let the module ask, where several ranks must stop together."""
        pl_module.stop_request = self._request

    def on_train_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Listen again, and stop if a signal came before the first step; a time limit allows at least one."""
        self._listen()
        number, _ = self._request()
        if trainer.world_size > 1:  # all ranks stop before the first step, whichever of them was asked
            asked = torch.tensor(number, dtype=torch.float32, device=trainer.strategy.root_device)
            number = int(trainer.strategy.reduce(asked, reduce_op="max"))
        _stop_if(number, late=False)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: GPTModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Between two steps, tell what was bad and look whether to stop."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        number, late = self._request()
        if trainer.world_size > 1:  # all ranks stop at the same step: when the host knows what they were asked
            outcome = pl_module.outcome
            number, late = (0, False) if outcome is None else (outcome.signal, outcome.late)
        if number or late:
            pl_module.settle()
        self._tell(trainer, pl_module)
        _stop_if(number, late=late)

    def on_validation_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Tell what was bad before the validation, the last of which ends the run."""
        pl_module.settle()
        self._tell(trainer, pl_module)

    def on_validation_batch_end(self, trainer: L.Trainer, pl_module: GPTModule, *batch: object) -> None:
        """Stop amid a validation, which a resumed run repeats; not on several ranks, whose shares are unequal."""
        if trainer.world_size == 1:
            number, late = self._request()
            _stop_if(number, late=late)

    def _request(self) -> tuple[int, bool]:
        """What this process was asked: the number of a signal, 0 for none, and whether its time is over."""
        return self.signal, self.deadline is not None and time.monotonic() >= self.deadline

    def _listen(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._numbers:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number

    def _tell(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Log each bad step that was not told yet; UserError after too many in a row."""
        while pl_module.untold:
            bad = pl_module.untold.pop(0)
            step = bad.outcome.step
            figures = f"loss {bad.outcome.loss:.4g}, gradient norm {bad.outcome.grad_norm:.4g}"
            windows = ", ".join(map(str, trainer.datamodule.starts(step - 1)[:SHOWN]))
            log(trainer, {"train/bad_steps": bad.n_so_far}, step=step)
            say(trainer, f"step {step} not applied: {figures}; its windows begin at tokens {windows} ... of train.bin")
            if bad.n_in_a_row >= self.max_bad_steps:
                self._give_up(trainer, bad, figures)

    def _give_up(self, trainer: L.Trainer, bad: BadStep, figures: str) -> None:
        """Raise UserError: the run cannot go on."""
        last = Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt"
        kept = f"{last} is from before them" if last.exists() else "nothing was saved before them"
        line = (
            f"{bad.n_in_a_row} steps in a row, to step {bad.outcome.step}, had a loss or gradient that is not finite "
            f"({figures}); {kept}"
        )
        say(trainer, line)
        raise UserError(f"{line}; start anew with a lower optimizer.lr, or look at the text of these windows")


def _stop_if(number: int, *, late: bool) -> None:
    """Raise Stop if a signal came, or the time is over."""
    if number:
        raise Stop(128 + number, signal.Signals(number).name)
    if late:
        raise Stop(0, "the time limit")


def seconds_of(max_time: float | str | None) -> float | None:
    """trainer.max_time in seconds; UserError unless it is seconds above 0, [[DD:]HH:]MM:SS, or None for no limit."""
    if max_time is None or (type(max_time) in (int, float) and 0 < max_time <= sys.float_info.max):
        return max_time
    if type(max_time) is str and re.fullmatch(r"(\d{1,6}:){1,3}\d{1,6}", max_time):
        parts = max_time.split(":")
        units = (86400, 3600, 60, 1)[-len(parts) :]
        return float(sum(int(part) * unit for part, unit in zip(parts, units, strict=True)))
    raise UserError(f"trainer.max_time must be seconds above 0, [[DD:]HH:]MM:SS or null for none, got {max_time!r}")
