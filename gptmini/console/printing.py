"""Print the lines of runs and commands. Unprintable characters become escapes, because a line may quote a file.

A line of a run starts with a topic of at most eight letters, and texts follow.
"""

import shlex
import sys
from pathlib import Path

from gptmini.console.printable import printable


def print_lines(*lines: str) -> None:
    """Print lines on stdout. The lines of two threads do not mix."""
    print("".join(f"{printable(line).rstrip()}\n" for line in lines), end="", flush=True)


def print_note(text: str) -> None:
    """Print a note on stderr, because a pipe or a file gets only results."""
    print(printable(text), file=sys.stderr, flush=True)


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
