"""A user's mistakes, told in one line: the words of pydantic, Hydra and the system, with the key that is meant."""

import argparse
import difflib
import errno
import os
import re
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from gptmini.configuration.messages import explain, lost_a_rank, ran_out_of_memory
from gptmini.job.launch import RanksFailed
from gptmini.process import INTERRUPTED, MISUSE, TROUBLE, is_muted
from gptmini.world import this_world

# Seconds that another rank waits before it tells a mistake. The first one may have met the mistake too, and tells it in
# that time; torchrun ends all ranks with the first that ends.
BEHIND = 10


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn a user's mistake into one line on stderr and exit code 2; a bug keeps its traceback.

    The exit code is 1 where memory or the disk ran out, or a rank was lost.

    With the environment variable GPTMINI_TRACEBACK set, every error keeps its traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        # A closed stream is None, and a stream that a caller put in place may lack this method.
        if hasattr(stream, "reconfigure"):
            # Print an escape sequence for a character that the system's encoding lacks, instead of failing.
            stream.reconfigure(errors="backslashreplace")

    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except RanksFailed as failed:
        if not failed.is_printed:
            print_mistake(str(failed))
        sys.exit(failed.code)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _stdout_is_unread():
            # The program that reads stdout, such as head, needs no more. Python flushes stdout once more when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        line = explain(error)
        if line is None:
            raise
        if this_world().rank > 0:
            time.sleep(BEHIND)
        print_mistake(line)
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        is_trouble = is_full or ran_out_of_memory(error) or lost_a_rank(error)
        sys.exit(TROUBLE if is_trouble else MISUSE)


def _stdout_is_unread() -> bool:
    """Whether stdout is a pipe whose reader is gone; another pipe that breaks, as to a worker, is an error."""
    stdout = sys.stdout
    if stdout is None or not hasattr(select, "poll"):
        return False
    try:
        descriptor = stdout.fileno()
    except OSError:  # a stream that a caller put in place may have no file
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))


def print_mistake(mistake: str) -> None:
    """Print a mistake as one line on stderr, with the rank that has met it, unless that is the first one.

    Nothing is printed where stderr is closed, since print would take stdout instead.
    """
    rank = this_world().rank
    where = f"rank {rank}: " if rank > 0 else ""
    if sys.stderr is not None and not is_muted():
        print(f"error: {where}{' '.join(mistake.split())}", file=sys.stderr, flush=True)


class Parser(argparse.ArgumentParser):
    """An argparse parser whose complaints are one line on stderr, as for every other mistake."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the command line as one line, and exit with code 2."""
        print_mistake(complaint(self, message))
        sys.exit(MISUSE)


def complaint(parser: argparse.ArgumentParser, message: str) -> str:
    """What argparse finds wrong with a command line; an unknown flag is told the nearest one that there is."""
    unknown = re.match(r"unrecognized arguments: (-\S+)", message)
    flags = re.findall(r"--[\w-]+", parser.format_usage())
    close = [] if unknown is None else difflib.get_close_matches(unknown[1], flags, n=1)
    if close:
        return f"{message}; the nearest is {close[0]}"
    return f"{message}; --help lists what there is"


def path_argument(text: str) -> Path:
    """The path that an option names, as a type of argparse; ~ at its beginning is the home folder."""
    if not text:
        raise argparse.ArgumentTypeError("must be a file or a folder, got an empty name")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(
            f"must be a file or a folder, got {text}: {error}"
        ) from None
