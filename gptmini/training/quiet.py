"""Silence notes and warnings of Lightning and torch that no setting turns off."""

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# Lightning's loggers; only their warnings and errors are shown.
NOISY = ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero", "lightning.fabric")
ALL_TO_ALL = "torch.distributed.tensor._collective_utils"


def quieten_lightning() -> None:
    """Silence hints about other products, unavoidable deprecation warnings, and tracebacks of TensorBoard's thread.

    This affects the entire process, unless the call is inside restore_logging().
    """
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)

    # This logger warns that gloo sends shards to their owners more slowly than NCCL.
    logging.getLogger(ALL_TO_ALL).setLevel(logging.ERROR)

    # Lightning uses a pytree class that torch has deprecated.
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*LeafSpec.*")

    # torch 2.13 renamed this option of DDP. torch 2.11 does not know the new name.
    warnings.filterwarnings("ignore", message=".*`broadcast_buffers` is deprecated.*")

    # TensorBoard's writer thread prints a traceback for an OSError. The main thread raises the same error.
    threading.excepthook = _silence_os_errors


@contextmanager
def restore_logging() -> Iterator[None]:
    """Undo quieten_lightning after the with block, for a program that calls gptmini."""
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
    """Print the traceback of a thread's exception, unless it is an OSError."""
    if not issubclass(args.exc_type, OSError):
        threading.__excepthook__(args)
