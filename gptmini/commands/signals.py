"""Signals that come while a command waits for a process that it has started."""

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# The signals that end a run once it is saved, as in gptmini/training/stopping.py; Windows lacks the last three.
NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
NUMBERS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


class PassedSignals:
    """Keeps the signals that come, and passes them on to a process."""

    def __init__(self) -> None:
        self.first = 0  # number of the first signal that came; 0 for none
        self.n_signals = 0  # how many came
        self._process: subprocess.Popen | None = None

    def pass_on_to(self, process: subprocess.Popen) -> None:
        """Pass every later signal on to a process, and the first signal at once if one has come."""
        self._process = process
        if self.first:
            self._pass_on(self.first)

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self.n_signals += 1
        if not self.first:
            self.first = number
        self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        # A terminal sends Ctrl-C to both processes itself; a second one would end the other process at once.
        if self._process is not None and number != signal.SIGINT:
            self._process.send_signal(number)


@contextmanager
def passing_signals_on() -> Iterator[PassedSignals]:
    """Let a process that the block starts decide what a signal does, where the waiting process would end at once.

    So the other process can save what it has. Afterwards signals do what they did before.
    """
    signals = PassedSignals()
    # Python allows signal handlers in the main thread alone.
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    # A process that the block starts does not inherit a handler, but it does inherit that a signal is turned off.
    handlers_before = {number: signal.getsignal(number) for number in NUMBERS}
    heeded = [number for number in NUMBERS if handlers_before[number] != signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, signals.note)
    try:
        yield signals
    finally:
        for number in heeded:
            signal.signal(number, handlers_before[number])
