"""Set up a process of gptmini when it starts, and end the process.

Idle threads: GNU OpenMP reads how long idle threads spin when torch is imported. Therefore `choose_spin_count` runs
before.

Launched ranks: a rank ends when its launcher is gone, even while the rank imports torch or waits for the launcher's
store. A thread checks the process id of the parent, which changes on every Unix when the parent dies. Only Linux can
send a signal then (prctl), and torch's launcher closes pipes between the launcher and its ranks.

Imports: torch, Lightning and Hydra create about a million objects that live until the program ends. Scanning them
repeatedly would take a fifth of the time until the first step, so garbage collection is off until the imports are done.
A KeyboardInterrupt during an import would be mistaken for a different error, or ignored. Nothing needs to be saved yet,
so Ctrl-C ends the program immediately.

Exit: after all exit handlers, the program ends with `os._exit`, because freeing torch's objects one by one takes a
tenth of a second. If another tool registered an exit handler before the program started, the program ends normally,
because `os._exit` would skip that handler. A process that trained with other processes always uses `os._exit`: threads
of gloo may still release tensors, and a thread that needs Python during finalization aborts the process (torch 2.13,
Python 3.11). Without `os._exit`, one run in 25 ended with SIGABRT after its work was done.
"""

import atexit
import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

from gptmini.system.world import this_world

MISUSE = 2  # exit code for a mistake that the user can fix; argparse uses the same exit code
# Exit code if memory or the disk ran out, a rank was lost, or another process trains the run. The same command may
# succeed later.
OUT_OF_RESOURCES = 1
INTERRUPTED = 130  # exit code after Ctrl-C: 128 + the number of SIGINT

# Number of iterations that torch's threads spin before they sleep, if libgomp runs these threads. With libgomp's
# default, a run is several times slower while another program is busy. On an idle machine, the default is not faster.
SPIN_COUNT = "3000"

# A launched rank has this environment variable. Its value is the process id of the launcher.
LAUNCHER = "GPTMINI_LAUNCHER"
POLL = 0.5  # seconds between two checks of the parent
# An environment variable of torch's launcher. Its value is the number of seconds that a rank may take to end after a
# signal.
SHUTDOWN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"

_waiting = False  # defer_gc_and_sigint was called, but restore_gc_and_sigint was not called yet
# gc.freeze was called. gc.get_freeze_count() would show this, too, but it takes 60 ms to count a million objects.
_frozen = False
_is_first = False  # no exit handler was registered before defer_gc_and_sigint was called
_is_muted = False  # this process prints no error messages
# Exit code for os._exit; None to end Python normally.
_exit_code: int | None = None


def open_closed_streams() -> None:
    """Let stdin, stdout and stderr read and write nothing if the program started without them, as after `>&-`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115, open until the end


def choose_spin_count() -> None:
    """Set how long idle threads spin, unless the user has set it. Call this before torch is imported."""
    # GOMP_SPINCOUNT would override the user's OMP_WAIT_POLICY.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def watch_launcher() -> None:
    """In a rank that gptmini launched, end the process when the launcher is gone. Do nothing in other processes."""
    # Processes that the rank starts have another parent, so they must not inherit the variable.
    launcher = os.environ.pop(LAUNCHER, None)
    if launcher is not None:
        threading.Thread(target=_end_without, args=(int(launcher),), daemon=True).start()


def _end_without(launcher: int) -> None:
    """When the launcher is gone, end this process as the launcher does: SIGTERM, and SIGKILL after SHUTDOWN_TIMEOUT."""
    while os.getppid() == launcher:
        time.sleep(POLL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(float(os.environ[SHUTDOWN_TIMEOUT]))
    os.kill(os.getpid(), signal.SIGKILL)


def defer_gc_and_sigint() -> None:
    """Turn off garbage collection, and let Ctrl-C end the program immediately. An ignored Ctrl-C stays ignored."""
    global _waiting, _is_first
    _waiting = True
    gc.disable()
    # Python has no public count of exit handlers (3.11 to 3.14).
    _is_first = not atexit._ncallbacks()
    atexit.register(_end_at_once)  # the first registered handler runs last
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def restore_gc_and_sigint() -> None:
    """Undo defer_gc_and_sigint once the large libraries are imported. Garbage collection then skips their objects."""
    global _waiting, _frozen
    if not _waiting:
        return
    _waiting = False
    # A second freeze in one process would keep the garbage of earlier runs.
    if not _frozen:
        _frozen = True
        gc.freeze()
    gc.enable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def set_exit_code(code: int) -> None:
    """Set the exit code of the program."""
    global _exit_code
    if _is_first or this_world().size > 1:
        _exit_code = code


def _end_at_once() -> None:
    if _exit_code is None:
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(_exit_code)


def mute(muted: bool) -> None:
    """Turn the error messages of this process off or on. Rank 0 prints the same errors as the other ranks."""
    global _is_muted
    _is_muted = muted


def is_muted() -> bool:
    """Return whether error messages of this process are off."""
    return _is_muted
