"""Simulate a full disk for this process."""

import resource
from contextlib import contextmanager


@contextmanager
def files_of_at_most(n_bytes):
    """Let writes fail that would make any file larger than n_bytes, within a with block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
