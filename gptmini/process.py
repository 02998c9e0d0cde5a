"""How a program of gptmini begins and ends.

GNU's OpenMP reads how torch's threads wait for work when torch is imported, so the program chooses that first.

A rank that gptmini has started ends when the process that has started it is gone, whatever the rank waits for: while it
imports torch, and while it looks for the store that this process kept. A thread looks at the id of the parent, which
every Unix changes when the parent dies. Linux alone would send a signal by itself (prctl), and a pipe between the two
processes would have to pass through torch's launcher, which closes it.

While a command imports its libraries, Python's garbage collector and its handler of Ctrl-C are set aside.

Importing torch, Lightning and Hydra makes about a million objects that stay until the program ends. The collector would
look through them again and again while they are made, which takes a fifth of the time to a run's first step. And a
Ctrl-C inside of an import is taken for another error, or passed over; there is nothing to save yet, so the system may
end the program at once.

A program ends without taking Python down, once all that is registered for its exit is done. To free the objects of
torch one by one takes a tenth of a second. What another tool has registered before the program began would be passed
over, so that Python is then taken down as ever, but not where a process has trained together with others: the threads
of gloo may still be letting go of the tensors of the last exchange, for which they need Python. A thread that asks for
Python while it is taken down aborts the process (torch 2.13, Python 3.11): one run in 25 ended with SIGABRT after its
work was done.
"""

import atexit
import gc
import os
import signal
import sys
import threading
import time

from gptmini.world import this_world

MISUSE = 2  # exit code of a mistake that the user can mend, as argparse's
# Exit code where memory or the disk ran out, or a rank was lost: the same command may succeed at another time.
TROUBLE = 1
INTERRUPTED = 130  # exit code after Ctrl-C: 128 + the number of SIGINT

# Rounds that the threads of torch spin before they sleep, where libgomp runs them. By libgomp's own choice a run beside
# a busy program is several times slower, and on a quiet machine no faster.
SPIN_COUNT = "3000"

# The variable in which a rank is given the id of the process that has started it.
LAUNCHER = "GPTMINI_LAUNCHER"
POLL = 0.5  # seconds between two looks at the parent
# The variable of torch's launcher with the seconds that a rank may take to end after it was sent a signal.
SHUTDOWN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"

_waiting = False  # whether set_aside was called, and started was not
_frozen = False  # whether started was called: gc.get_freeze_count() walks the million objects, which takes 60 ms
_is_first = False  # whether nothing was registered for the exit before set_aside was called
_is_muted = False  # whether this process prints no mistakes
# Of a program that is to end at once; None where Python is to be taken down.
_exit_code: int | None = None


def choose_spin_count() -> None:
    """Choose how long idle threads spin, unless the user has; must be called before torch is imported."""
    # GOMP_SPINCOUNT would count instead of an OMP_WAIT_POLICY of the user's.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def end_with_launcher() -> None:
    """As a rank that gptmini has started, end when the process that has started this rank is gone; else do nothing."""
    # What the rank starts itself has another parent.
    launcher = os.environ.pop(LAUNCHER, None)
    if launcher is not None:
        threading.Thread(target=_end_without, args=(int(launcher),), daemon=True).start()


def _end_without(launcher: int) -> None:
    """When the launcher is gone, do to this process what the launcher would do at a SIGTERM.

    The system ends a rank that has not begun to train, and a rank that trains saves the run. One that waits in vain for
    another rank is killed after SHUTDOWN_TIMEOUT.
    """
    while os.getppid() == launcher:
        time.sleep(POLL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(float(os.environ[SHUTDOWN_TIMEOUT]))
    os.kill(os.getpid(), signal.SIGKILL)


def set_aside() -> None:
    """Turn the collector off, and let the system end the program at a Ctrl-C; one that is turned off stays off."""
    global _waiting, _is_first
    _waiting = True
    gc.disable()
    # Python has no public count of what is registered (3.11 to 3.14).
    _is_first = not atexit._ncallbacks()
    atexit.register(_end_at_once)  # what is registered first is called last
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def started() -> None:
    """Put back what set_aside has set aside, because the large libraries are imported; their objects stay for good."""
    global _waiting, _frozen
    if not _waiting:
        return
    _waiting = False
    # A second call in one process would also freeze the garbage of the runs before it.
    if not _frozen:
        _frozen = True
        gc.freeze()
    gc.enable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def will_end(code: int) -> None:
    """Tell with which exit code the program ends."""
    global _exit_code
    if _is_first or this_world().size > 1:
        _exit_code = code


def _end_at_once() -> None:
    """End the process after everything else that is done at an exit."""
    if _exit_code is None:
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(_exit_code)


def mute(muted: bool) -> None:
    """Let this process print its mistakes or not: another rank does not, while the first one makes the same ones."""
    global _is_muted
    _is_muted = muted


def is_muted() -> bool:
    """Whether this process prints no mistakes."""
    return _is_muted
