"""Python's garbage collector, kept out of the way while a command imports its libraries.

Importing torch, Lightning and Hydra makes about a million objects that stay until the program ends. The collector
would look through them again and again while they are made, which takes a fifth of the time to a run's first step.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_paused = False  # whether collector_paused has turned the collector off
_frozen = False  # whether the objects of the libraries were excluded from collections


@contextmanager
def collector_paused() -> Iterator[None]:
    """Turn the garbage collector off until resume_collector is called, or else until the block ends.

    A collector that the caller had already turned off stays off.
    """
    global _paused
    if not gc.isenabled():
        yield
        return

    _paused = True
    gc.disable()
    try:
        yield
    finally:
        _paused = False
        gc.enable()


def resume_collector() -> None:
    """Turn a paused garbage collector on again.

    The first call in a process also excludes all objects that exist from later collections. They are those of the
    libraries, and stay until the program ends.
    """
    global _paused, _frozen
    if not _paused:
        return

    # Freeze only once: a second call would also freeze the garbage of the runs before it, which would then never be
    # collected.
    if not _frozen:
        gc.freeze()
        _frozen = True
    _paused = False
    gc.enable()
