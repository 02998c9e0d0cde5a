"""Silence notes and warnings of Lightning and torch that cannot be turned off by a setting."""

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# Lightning's Python loggers. Of their messages, only warnings and errors are shown.
NOISY = ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero", "lightning.fabric")
ALL_TO_ALL = "torch.distributed.tensor._collective_utils"


def quieten_lightning() -> None:
    """Silence hints about other products, unavoidable deprecation warnings, and tracebacks of TensorBoard's thread.

    This function affects the entire process, unless it is called inside a `with restore_logging()` block.
    """
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)

    # This logger warns that gloo sends shards to their owners more slowly than NCCL.
    logging.getLogger(ALL_TO_ALL).setLevel(logging.ERROR)

    # Lightning uses a pytree class that torch has deprecated.
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*LeafSpec.*")

    # torch 2.13 renamed this option of DDP. torch 2.11 does not know the new name.
    warnings.filterwarnings("ignore", message=".*`broadcast_buffers` is deprecated.*")

    # If TensorBoard's writer thread gets an OSError, it prints a traceback. The main thread raises the same error, so
    # the traceback is not needed.
    threading.excepthook = _silence_os_errors


@contextmanager
def restore_logging() -> Iterator[None]:
    """Undo quieten_lightning at the end of the with block, because another program may call gptmini."""
    levels = {name: logging.getLogger(name).level for name in (*NOISY, ALL_TO_ALL)}
    hook = threading.excepthook
    try:
        with warnings.catch_warnings():
            yield
    finally:
        threading.excepthook = hook
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _silence_os_errors(args: threading.ExceptHookArgs) -> None:
    if not issubclass(args.exc_type, OSError):
        threading.__excepthook__(args)
