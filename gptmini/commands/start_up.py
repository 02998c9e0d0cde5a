"""What is set aside while a command imports its libraries: Python's garbage collector, and its handler of Ctrl-C.

Importing torch, Lightning and Hydra makes about a million objects that stay until the program ends. The collector
would look through them again and again while they are made, which takes a fifth of the time to a run's first step.

Python's handler of Ctrl-C raises an error wherever the program happens to be. Inside of an import, libraries take that
error for another one, pass it over, or abort. There is nothing to save yet, so the system may end the program at once.
"""

import gc
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_collector_paused = False  # whether starting_up has turned the collector off
_interrupts_end = False  # whether starting_up lets the system end the program at a Ctrl-C
_frozen = False  # whether the objects of the libraries were excluded from collections


@contextmanager
def starting_up() -> Iterator[None]:
    """Set the garbage collector and the handler of Ctrl-C aside until started is called, or else until the block ends.

    A collector that the caller had already turned off stays off, and so does a Ctrl-C.
    """
    global _collector_paused, _interrupts_end
    is_main = threading.current_thread() is threading.main_thread()
    # gptmini/__main__.py has the system end the program from the very beginning.
    own = (signal.default_int_handler, signal.SIG_DFL)
    if is_main and signal.getsignal(signal.SIGINT) in own:
        _interrupts_end = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if gc.isenabled():
        _collector_paused = True
        gc.disable()

    try:
        yield
    finally:
        _heed_interrupts()
        if _collector_paused:
            _collector_paused = False
            gc.enable()


def started() -> None:
    """Put back what starting_up has set aside, because the large libraries are imported.

    The first call in a process also excludes all objects that exist from later collections. They are those of the
    libraries, and stay until the program ends.
    """
    global _collector_paused, _frozen
    _heed_interrupts()
    if not _collector_paused:
        return

    # Freeze only once: a second call would also freeze the garbage of the runs before it, which would then never be
    # collected.
    if not _frozen:
        gc.freeze()
        _frozen = True
    _collector_paused = False
    gc.enable()


def _heed_interrupts() -> None:
    """Let a Ctrl-C raise KeyboardInterrupt, if starting_up has changed that."""
    global _interrupts_end
    if _interrupts_end:
        _interrupts_end = False
        signal.signal(signal.SIGINT, signal.default_int_handler)
