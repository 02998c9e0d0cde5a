"""A user's mistakes, told in one line."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from gptmini.checks import UserError

MISUSE = 2  # exit code of a mistake that the user can mend, as argparse's
INTERRUPTED = 130  # 128 + SIGINT


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn a mistake into one line on stderr and exit code 2; a traceback remains for a bug.

    With GPTMINI_TRACEBACK set every error keeps its traceback, for whoever suspects that the one line hides a bug.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # neither closed nor replaced by something simpler
            stream.reconfigure(errors="backslashreplace")  # whatever the system's encoding lacks
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        line = None if os.environ.get("GPTMINI_TRACEBACK") else explain(error)
        if line is None:
            raise
        print_mistake(line)
        sys.exit(MISUSE)


def print_mistake(mistake: str) -> None:
    """Tell a mistake in one line on stderr."""
    print(f"error: {' '.join(mistake.split())}", file=sys.stderr, flush=True)


def refuse(message: str) -> NoReturn:
    """Tell what argparse finds wrong with a command line, and leave."""
    print_mistake(f"{message}; --help lists what there is")
    sys.exit(MISUSE)


def explain(error: BaseException) -> str | None:
    """What to tell the user of an error; None if it is a bug."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, RecursionError):
        return "what was typed or read is nested too deeply"
    if _ran_out_of_memory(error):
        return "memory ran out; lower batch_size (trainer.batch_size when training) or the model's sizes"

    name = type(error).__name__
    if name == "InstantiationException":
        return _explain_part(error)
    if type(error).__module__.startswith(("hydra.", "omegaconf.")):
        hint = "; quote a value of other characters inside too: 'key=\"value\"'" if "override" in name.lower() else ""
        reason = str(error).partition("Config search path")[0].partition("\n    full_key")[0]
        return (reason or f"the configuration cannot be composed ({name})") + hint
    if isinstance(error, OSError):  # after Hydra's, of which some are OSErrors too
        return f"{os.fsdecode(error.filename or 'input or output')}: {error.strerror or error}"

    # Lightning's own words for a callback or a logger that does not fit, or that needs a package that is not there.
    if name == "MisconfigurationException" or str(error).startswith("Early stopping conditioned on metric"):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and "pip install" in str(error):
        return str(error)
    return None


def _ran_out_of_memory(error: BaseException) -> bool:
    """Whether the processor's or a GPU's memory did not suffice; torch has no common class for that."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _explain_part(error: Exception) -> str | None:
    """What to tell of a part of a configuration that Hydra could not make; None if ours fails by a bug of its own."""
    cause = error.__cause__
    key = str(error).rpartition("full_key: ")[2]
    if isinstance(cause, TypeError):
        return f"{key} does not fit: {cause}"
    if isinstance(cause, ImportError):
        return f"{key} cannot be made: {cause}"

    explained = None if cause is None else explain(cause)
    if explained is None and "'gptmini." not in str(error):
        return str(error)
    return explained


class Parser(argparse.ArgumentParser):
    """argparse, with its complaints in one line as everyone's."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and leave."""
        refuse(message)
