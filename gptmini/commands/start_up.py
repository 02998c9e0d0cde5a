"""Python's garbage collector, kept out of the way while a command imports what it needs.

Importing torch, Lightning and Hydra makes about a million objects that stay until the end. The collector would look
through them again and again as they come, which takes a fifth of the time to a run's first step.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Collect no garbage until resume_collector is called, or the block ends."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def resume_collector() -> None:
    """Collect garbage again; what the first start-up of a process made is never looked through."""
    if gc.isenabled():
        return
    if gc.get_freeze_count() == 0:  # later ones would keep the garbage of earlier runs for ever
        gc.freeze()
    gc.enable()
