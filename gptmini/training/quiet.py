"""Silence hints of Lightning and torch that no setting avoids."""

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# Loggers of Lightning's whose hints are silenced.
NOISY = ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero", "lightning.fabric")
ALL_TO_ALL = "torch.distributed.tensor._collective_utils"


def quieten_lightning() -> None:
    """Silence hints at other products, a deprecation that no setting avoids, and tracebacks of TensorBoard's thread.

    This holds for the whole process, unless it happens inside of keeping_noise().
    """
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)

    # gloo sends shares to their owners in a slower way than NCCL does.
    logging.getLogger(ALL_TO_ALL).setLevel(logging.ERROR)

    # Lightning uses a class of torch's pytrees that torch has deprecated.
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*LeafSpec.*")

    # torch 2.13 has another name for an option of DDP, which torch 2.11 does not know.
    warnings.filterwarnings("ignore", message=".*`broadcast_buffers` is deprecated.*")

    # TensorBoard's writing thread prints a traceback of an OSError, and the main thread raises the same error.
    threading.excepthook = _silence_os_errors


@contextmanager
def keeping_noise() -> Iterator[None]:
    """Undo after the block what quieten_lightning does, for a caller whose process is not gptmini's."""
    levels = {name: logging.getLogger(name).level for name in (*NOISY, ALL_TO_ALL)}
    hook = threading.excepthook
    try:
        with warnings.catch_warnings():
            yield
    finally:
        threading.excepthook = hook
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _silence_os_errors(hint: threading.ExceptHookArgs) -> None:
    """Let a thread die of an OSError without a word; print the traceback of any other exception."""
    if not issubclass(hint.exc_type, OSError):
        threading.__excepthook__(hint)
