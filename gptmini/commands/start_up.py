"""What is set aside while a command imports its libraries: Python's garbage collector, and its handler of Ctrl-C.

Importing torch, Lightning and Hydra makes about a million objects that stay until the program ends. The collector would
look through them again and again while they are made, which takes a fifth of the time to a run's first step. And a
Ctrl-C inside of an import is taken for another error, or passed over; there is nothing to save yet, so the system may
end the program at once.
"""

import gc
import signal

_waiting = False  # whether set_aside was called, and started was not


def set_aside() -> None:
    """Turn the collector off, and let the system end the program at a Ctrl-C; one that is turned off stays off."""
    global _waiting
    _waiting = True
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def started() -> None:
    """Put back what set_aside has set aside, because the large libraries are imported; their objects stay for good."""
    global _waiting
    if not _waiting:
        return
    _waiting = False
    # A second call in one process would also freeze the garbage of the runs before it.
    if not gc.get_freeze_count():
        gc.freeze()
    gc.enable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
