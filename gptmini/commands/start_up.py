"""Python's garbage collector, kept out of the way while a command imports what it needs.

Importing torch, Lightning and Hydra makes about a million objects that stay until the end. The collector would look
through them again and again as they come, which takes a fifth of the time to a run's first step.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_paused = False  # whether it is off because of collector_paused


@contextmanager
def collector_paused() -> Iterator[None]:
    """Collect no garbage until resume_collector is called, or the block ends; who had it off before keeps it off."""
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
    """Collect garbage again, if it is paused; what the first start-up of a process made is never looked through."""
    global _paused
    if not _paused:
        return
    if gc.get_freeze_count() == 0:  # later ones would keep the garbage of earlier runs for ever
        gc.freeze()
    _paused = False
    gc.enable()
