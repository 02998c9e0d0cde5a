"""Lines that runs and commands print: a topic, which is a word of at most eight letters, and texts beside it."""

import shlex
from pathlib import Path


def say(topic: str, *texts: str) -> None:
    """Print a topic beside the first text, and the other texts below it."""
    for line in lines_of(topic, *texts):
        print(line, flush=True)


def lines_of(topic: str, *texts: str) -> list[str]:
    """The lines of a topic beside the first text, and of the other texts below it."""
    return [f"{topic if i == 0 else '':8} {text}" for i, text in enumerate(texts)]


def command_line(name: str, *arguments: str) -> str:
    """A gptmini command that this user's shell takes as it is."""
    return shlex.join(["gptmini", name, *arguments])


def as_argument(folder: Path) -> str:
    """A folder as an argument that no program takes for an option or for the home folder, as -x and ~ would be."""
    text = str(folder)
    return f"./{text}" if text.startswith(("-", "~")) else text
