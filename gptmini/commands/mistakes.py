"""Print a user's mistake as one line, including errors of pydantic, Hydra and the system."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gptmini.configuration.messages import exit_code_of, explain
from gptmini.console.printing import end_if_unread, print_note
from gptmini.system.errors import RanksFailed
from gptmini.system.process import INTERRUPTED, is_muted
from gptmini.system.world import this_world

# Every rank except rank 0 waits this many seconds before it prints an error. If rank 0 has the same error, it prints
# the error and ends. Then torchrun ends all other ranks.
BEHIND = 10


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Print a user's mistake as one line on stderr, and exit with code 2. A bug keeps its traceback.

    The exit code is 1 if the same command may succeed later. If the environment variable
    GPTMINI_TRACEBACK is set, every error keeps its traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        # A caller's own stream may lack this method.
        if hasattr(stream, "reconfigure"):
            # If the system's encoding does not have a character, print an escape sequence instead of raising an error.
            stream.reconfigure(errors="backslashreplace")

    try:
        with end_if_unread():
            yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except RanksFailed as failed:
        if not failed.is_printed:
            print_error(str(failed))
        sys.exit(failed.code)
    except Exception as error:
        line = explain(error)
        if line is None:
            raise
        if this_world().rank > 0:
            time.sleep(BEHIND)
        print_error(line)
        sys.exit(exit_code_of(error))


def print_error(mistake: str) -> None:
    """Print an error as one line on stderr. Every rank except rank 0 adds its own number to the line."""
    rank = this_world().rank
    where = f"rank {rank}: " if rank > 0 else ""
    if not is_muted():
        print_note(f"error: {where}{' '.join(mistake.split())}")
