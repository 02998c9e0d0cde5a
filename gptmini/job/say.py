"""Lines that runs and commands print: a topic of at most eight letters, followed by texts."""

import shlex
from pathlib import Path


def say(topic: str, *texts: str) -> None:
    """Print a topic and the first text in one line, and each other text in a line below."""
    for line in lines_of(topic, *texts):
        print(line, flush=True)


def lines_of(topic: str, *texts: str) -> list[str]:
    """Return a line with the topic and the first text, and a line for each other text."""
    return [f"{topic if i == 0 else '':8} {text}" for i, text in enumerate(texts)]


def command_line(name: str, *arguments: str) -> str:
    """Return a gptmini command, quoted for a shell."""
    return shlex.join(["gptmini", name, *arguments])


def as_argument(folder: Path) -> str:
    """Return a folder as an argument; a leading ./ keeps -x from being read as an option and ~ as the home folder."""
    text = str(folder)
    return f"./{text}" if text.startswith(("-", "~")) else text
