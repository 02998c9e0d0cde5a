"""Start and end of a gptmini process.

Idle threads: when torch is imported, GNU OpenMP reads how long idle threads spin. `choose_spin_count` must run before
this import.

Launched ranks: a rank ends when the process that launched it is gone, even while the rank imports torch or waits for
the launcher's store. A thread polls the parent's process id, which changes on every Unix when the parent dies. Other
ways do not work: only Linux can send a signal (prctl), and torch's launcher closes pipes between the two processes.

Imports: torch, Lightning and Hydra create about a million objects that live until the program ends. Scanning
them repeatedly during the imports would take a fifth of the time to a run's first step, so garbage collection is off
until the imports are done. A KeyboardInterrupt during an import would be mistaken for a different error, or ignored.
Nothing needs to be saved yet, so Ctrl-C ends the program immediately.

Exit: after all exit handlers have run, the program ends with `os._exit`, because freeing torch's objects one by one
takes a tenth of a second. If another tool registered an exit handler before the program started, the program ends
normally, because `os._exit` would skip that handler. But a process that trained with other processes always uses
`os._exit`: gloo's threads may still release the tensors of the last exchange, for which they need Python. A thread that
needs Python during finalization aborts the process (torch 2.13, Python 3.11). Without
`os._exit`, one run in 25 ended with SIGABRT after its work was done.
"""

import atexit
import gc
import os
import signal
import sys
import threading
import time

from gptmini.world import this_world

MISUSE = 2  # exit code of a mistake that the user can fix, same as argparse's
# Exit code if memory or the disk ran out, or a rank was lost. The same command may succeed later.
OUT_OF_RESOURCES = 1
INTERRUPTED = 130  # exit code after Ctrl-C: 128 + the number of SIGINT

# Iterations that torch's threads spin before they sleep, if libgomp runs them. With libgomp's default, a run is
# several times slower while another program is busy. On an idle machine, the default is not faster.
SPIN_COUNT = "3000"

# Environment variable of a rank with the process id of its launcher.
LAUNCHER = "GPTMINI_LAUNCHER"
POLL = 0.5  # seconds between two checks of the parent
# Environment variable of torch's launcher: seconds that a rank may take to end after a signal.
SHUTDOWN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"

_waiting = False  # defer_gc_and_sigint was called, restore_gc_and_sigint was not
# gc.freeze was called. gc.get_freeze_count() would show this too, but it takes 60 ms to count the million objects.
_frozen = False
_is_first = False  # no exit handler was registered before defer_gc_and_sigint was called
_is_muted = False  # this process prints no error messages
# Exit code for os._exit; None to end Python normally.
_exit_code: int | None = None


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
    """When the launcher is gone, end this process as the launcher does after a SIGTERM.

    SIGTERM ends a rank that has not started to train; a training rank saves the run. A rank that still waits for
    another rank is killed after SHUTDOWN_TIMEOUT.
    """
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
    """Undo defer_gc_and_sigint once the large libraries are imported; garbage collection then skips their objects."""
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
    """End the process after all other exit handlers."""
    if _exit_code is None:
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(_exit_code)


def mute(muted: bool) -> None:
    """Turn error messages of this process off or on. Other ranks are muted, because rank 0 prints the same errors."""
    global _is_muted
    _is_muted = muted


def is_muted() -> bool:
    """Return whether error messages of this process are off."""
    return _is_muted
