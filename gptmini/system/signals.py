"""Catch Ctrl-C and other signals that ask a program to end."""

import signal
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Piece = TypeVar("Piece")

# These signals stop a run after its current step. The step is saved. Windows does not have the last three signals. A
# terminal that closes sends SIGHUP. Slurm announces the time limit of a job with SIGUSR1, SIGUSR2 or SIGTERM.
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
# A second Ctrl-C ends the program immediately if it comes more than this many seconds after the first. A signal that
# comes earlier may belong to the same key press.
IMPATIENT = 1.0


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop a run. Leave out signals that the system does not have or that the process ignores.

    For example, the command nohup makes a process ignore SIGHUP. A shell makes background processes ignore SIGINT.
    """
    known = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    return [number for number in known if signal.getsignal(number) != signal.SIG_IGN]


class CtrlC:
    """Handles Ctrl-C in a with block: it drops the line that the user types, or stops the generated text.

    If Ctrl-C comes a second time while the model computes its next token, it raises KeyboardInterrupt. A signal that
    comes earlier than IMPATIENT seconds after the first may belong to the same key press.
    """

    def __init__(self) -> None:
        self.is_typing = False
        self.pressed: float | None = None  # time.monotonic() of the first Ctrl-C amid a text

    def __enter__(self) -> "CtrlC":
        """Install the handler."""
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the handler from before."""
        signal.signal(signal.SIGINT, self._before)

    def until_pressed(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yield the pieces of a text up to the first Ctrl-C, so that everything that was generated is written."""
        for piece in pieces:
            yield piece
            if self.pressed is not None:
                return

    def _handle(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if self.is_typing:
            raise KeyboardInterrupt
        if self.pressed is None:
            self.pressed = now
        elif now - self.pressed > IMPATIENT:
            raise KeyboardInterrupt
