"""Catch Ctrl-C and other signals that ask a program to end."""

import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, Self, TypeVar

Piece = TypeVar("Piece")

# These signals stop a run after its current step. The step is saved. Windows does not have the last three signals. A
# terminal that closes sends SIGHUP. Slurm announces the time limit of a job with SIGUSR1, SIGUSR2 or SIGTERM.
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
IMPATIENT = 1.0  # seconds; see CtrlC


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop a run. Leave out signals that the system does not have or that the process ignores.

    For example, the command nohup makes a process ignore SIGHUP. A shell makes background processes ignore SIGINT.
    """
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    return [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]


class FirstSignal:
    """Catches signals in a with block, so that the block can end its work. Stores the number of the first signal.

    A Ctrl-C after the first signal raises KeyboardInterrupt. The end of the block restores the earlier handlers.

    The argument numbers has the signals to catch. None means stop_signals().
    """

    def __init__(self, numbers: Sequence[signal.Signals] | None = None) -> None:
        self.number = 0  # 0: no signal has arrived
        self.handlers_before: dict[int, Any] = {}
        self._numbers = numbers

    def __enter__(self) -> Self:
        """Install the handlers. Python allows signal handlers only in the main thread."""
        if threading.current_thread() is threading.main_thread():
            numbers = stop_signals() if self._numbers is None else self._numbers
            self.handlers_before = {number: signal.getsignal(number) for number in numbers}
        self.install()
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the handlers from before."""
        for number, handler in self.handlers_before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Install the handlers once more, after a library has replaced them."""
        for number in self.handlers_before:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.number:
            self.number = number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt


class CtrlC(FirstSignal):
    """Catches Ctrl-C in a with block. While the user types, Ctrl-C raises KeyboardInterrupt. Otherwise, it ends a text.

    One press of the key may send two signals. Therefore the second signal raises KeyboardInterrupt only if it comes
    more than IMPATIENT seconds after the first.
    """

    def __init__(self) -> None:
        super().__init__([signal.SIGINT])
        self.is_typing = False
        self._pressed_at = 0.0  # time.monotonic() of the first Ctrl-C

    def until_pressed(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yield the pieces of a text up to the first Ctrl-C, so that everything that was generated is written."""
        for piece in pieces:
            yield piece
            if self.number:
                return

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.is_typing:
            raise KeyboardInterrupt
        if not self.number:
            self._pressed_at = now
        elif now - self._pressed_at <= IMPATIENT:
            return
        super()._handle(number, frame)
