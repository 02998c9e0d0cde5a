"""Lines that runs and commands print: a topic of at most eight letters, followed by texts."""

import shlex
from pathlib import Path


def print_topic(topic: str, *texts: str) -> None:
    """Print a topic and the first text in one line, and the other texts below. Two threads do not mix their lines."""
    lines = topic_lines(topic, *texts)
    print("".join(f"{line.rstrip()}\n" for line in lines), end="", flush=True)


def topic_lines(topic: str, *texts: str) -> list[str]:
    """Return a line with the topic and the first text, and a line for each other text."""
    return [f"{topic if i == 0 else '':8} {text}" for i, text in enumerate(texts)]


def command_line(name: str, *arguments: str) -> str:
    """Return a gptmini command, quoted for a shell."""
    return shlex.join(["gptmini", name, *arguments])


def as_argument(folder: Path) -> str:
    """Return a folder as an argument. Add ./ to names with a leading - or ~, so that they are read as plain names."""
    text = str(folder)
    return f"./{text}" if text.startswith(("-", "~")) else text
