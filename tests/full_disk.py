"""A disk that is full, as a process meets it."""

import resource
from contextlib import contextmanager


@contextmanager
def files_of_at_most(n_bytes):
    """Let the system refuse to write more bytes of any file, within a block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
