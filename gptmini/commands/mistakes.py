"""Print a user's mistake as one line, including errors of argparse, pydantic, Hydra and the system."""

import argparse
import os
import re
import select
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from gptmini.configuration.messages import exit_code_of, explain
from gptmini.files import exists
from gptmini.job.launch import RanksFailed
from gptmini.job.printing import print_note
from gptmini.process import INTERRUPTED, MISUSE, is_muted
from gptmini.user_error import similar
from gptmini.world import this_world

# Every rank except rank 0 waits this many seconds before it prints an error. If rank 0 has the same error, it prints
# the error and ends. Then torchrun ends all other ranks.
BEHIND = 10

# Error messages of argparse (Python 3.11 to 3.14), and the messages that gptmini prints instead.
REWORDED = (
    (r"argument (\S+): (must .*)", r"\1 \2"),
    (r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)", r"\1 must be one of \3, got \2"),
    (r"argument (\S+): invalid int value: (.*)", r"\1 must be an integer, got \2"),
    (r"argument (\S+): invalid float value: (.*)", r"\1 must be a number, got \2"),
    (r"argument (\S+): expected (\d+) arguments", r"\1 requires \2 values"),
    (r"argument (\S+): expected .*", r"\1 requires a value"),
    (r"argument (\S+): ignored explicit argument (.*)", r"\1 takes no value, got \2"),
    (r"argument (\S+): not allowed with argument (\S+)", r"give either \2 or \1, not both"),
    (r"the following arguments are required: run", "missing argument: run, such as runs/latest"),
    (r"the following arguments are required: (.*)", r"missing argument: \1; see --help"),
)
# What to write instead of a text among the arguments, by command.
TEXT_FIXES = {
    "gptmini sample": "for a prompt, write --prompt {0}",
    "gptmini chat": "for a message, write echo {0} | gptmini chat RUN",
}
# If an option is unknown, gptmini suggests a known option of at least this similarity.
ALIKE = 0.7


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
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except RanksFailed as failed:
        if not failed.is_printed:
            print_error(str(failed))
        sys.exit(failed.code)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _stdout_is_unread():
            # The reader of stdout, such as head, has ended. Python flushes stdout once more when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        line = explain(error)
        if line is None:
            raise
        if this_world().rank > 0:
            time.sleep(BEHIND)
        print_error(line)
        sys.exit(exit_code_of(error))


def _stdout_is_unread() -> bool:
    """Return whether stdout is a pipe without a reader.

    Other broken pipes, such as the pipe of a worker, are errors.
    """
    if not hasattr(select, "poll"):
        return False
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # a caller's own stream may have no file
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))


def print_error(mistake: str) -> None:
    """Print an error as one line on stderr. Every rank except rank 0 adds its own number to the line."""
    rank = this_world().rank
    where = f"rank {rank}: " if rank > 0 else ""
    if not is_muted():
        print_note(f"error: {where}{' '.join(mistake.split())}")


class Parser(argparse.ArgumentParser):
    """An argparse parser that prints an error as one line on stderr, like every other mistake."""

    def __init__(self, **options: Any) -> None:
        """Create the parser. Options must not be abbreviated, because a new option could change their meaning."""
        super().__init__(allow_abbrev=False, **options)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the command line. Refuse a positional argument NAME=VALUE if the command has an option --NAME."""
        options = super().parse_args(args, namespace)
        for action in self._get_positional_actions():
            values = getattr(options, action.dest)
            refuse_options_as_keys(self, values if isinstance(values, list) else [values])
        return options

    def error(self, message: str) -> NoReturn:
        """Print the error as one line, and exit with code 2."""
        print_error(complaint(self, message))
        sys.exit(MISUSE)


def complaint(parser: argparse.ArgumentParser, message: str) -> str:
    """Return the message that gptmini prints for an error of argparse.

    If an option is unknown, the message suggests the most similar option.
    """
    unknown = re.match(r"unrecognized arguments: (\S+)(.*?)(?: --|$)", message, flags=re.DOTALL)
    if unknown is None:
        for theirs, ours in REWORDED:
            message = re.sub(f"^{theirs}$", ours, message, flags=re.DOTALL)
        return message

    word = unknown[1]
    is_option = word.startswith("-")
    meant = similar_option(parser, word)
    if not is_option and "=" not in word and parser.prog in TEXT_FIXES:
        text = shlex.quote(word + unknown[2])
        return f"unknown argument {text}; {TEXT_FIXES[parser.prog].format(text)}"
    fix = f"did you mean {meant}?" if meant else "see --help"
    return f"unknown {'option' if is_option else 'argument'} {word}; {fix}"


def similar_option(parser: argparse.ArgumentParser, word: str) -> str | None:
    """Return the option that an unknown word probably means, or None."""
    if len(word.lstrip("-")) == 1:  # a single letter is similar to every short name
        return None
    # A word without dashes must equal the name of an option.
    cutoff = ALIKE if word.startswith("-") else 1.0
    meant = "--" + word.partition("=")[0].lstrip("-").replace("_", "-")
    flags = _flags_of(parser)
    abbreviated = [flag for flag in flags if word.startswith("-") and flag.startswith(meant)]
    return next(iter(abbreviated), similar(meant, flags, cutoff)) or None


def refuse_options_as_keys(parser: argparse.ArgumentParser, words: Sequence[object]) -> None:
    """Print an error and exit if a word is NAME=VALUE although an option --NAME exists.

    Do nothing if a file has the name of this word.
    """
    flags = _flags_of(parser)
    for word in map(str, words):
        flag, equals, _ = f"--{word}".partition("=")
        if equals and flag in flags and not exists(word):
            parser.error(f"unknown argument {word}; did you mean {flag}?")


def _flags_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return the long options of a parser."""
    return re.findall(r"--[\w-]+", parser.format_usage())


def path_argument(text: str) -> Path:
    """Return the value of an option as a path.

    A leading ~ means the home folder. argparse calls this function as a type.
    """
    if not text:
        raise argparse.ArgumentTypeError("must be a file or a folder, got an empty name")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(
            f"must be a file or a folder, got {text}: {error}"
        ) from None
