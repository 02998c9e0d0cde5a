"""Print the lines of runs and commands. Unprintable characters become escapes, because a line may quote a file.

A line of a run is a topic of at most eight letters, and a text.
"""

import os
import select
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from gptmini.console.printable import printable


def print_lines(*lines: str, file: TextIO | None = None) -> None:
    """Print lines on stdout or into a file. The lines of two threads do not mix."""
    text = "".join(f"{printable(line).rstrip()}\n" for line in lines)
    print(text, end="", file=file, flush=True)


def print_note(text: str) -> None:
    """Print a note on stderr, because a pipe or a file gets only results."""
    print_lines(text, file=sys.stderr)


@contextmanager
def end_if_unread() -> Iterator[None]:
    """End the program with code 0 if the reader of stdout, such as head, ends inside the with block.

    A run continues instead. See BrokenPipeConsole.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        if not _is_unread(sys.stdout):
            raise
        # Python flushes stdout once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _is_unread(stream: TextIO) -> bool:
    """Return whether a stream is a pipe without a reader. Other broken pipes, such as of a worker, are errors."""
    if not hasattr(select, "poll"):  # Windows
        return False
    try:
        descriptor = stream.fileno()
    except OSError:  # a caller's own stream may have no file
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))


def print_resolved_run(given: Path, run: Path) -> None:
    """If the user gave a folder of runs, print on stderr which run is used.

    Call this function only when the command can no longer fail.
    """
    if run.absolute().parent == given.absolute():
        print_note(f"using {run}, the latest run in {given} for this command")


def print_topic(topic: str, *texts: str) -> None:
    """Print a topic and the first text in one line, and the other texts below."""
    print_lines(*topic_lines(topic, *texts))


def topic_lines(topic: str, *texts: str) -> list[str]:
    """Return a line with the topic and the first text, and a line for each other text."""
    return [f"{topic if i == 0 else '':8} {text}" for i, text in enumerate(texts)]


def sampling_command(run: Path, chat_template: str | None, *options: str) -> str:
    """Return the command that tries a trained model: gptmini chat if it has a chat template, otherwise gptmini sample.

    Only gptmini sample gets the options.
    """
    if chat_template is None:
        return command_line("sample", str(run), *options)
    return command_line("chat", str(run))


def command_line(name: str, *arguments: str) -> str:
    """Return a gptmini command, quoted for a shell."""
    return shlex.join(["gptmini", name, *arguments])
