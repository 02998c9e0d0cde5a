"""Complete command lines in a shell: gptmini -sc install=bash prints the function that bash calls on Tab.

Hydra writes the function and completes the keys, but it supports only programs without commands. The function runs
`gptmini -sc query=bash`, with the typed line in the variable COMP_LINE. This module reads the command in this line.
"""

import os

from gptmini.commands import COMMANDS, run
from gptmini.configuration.keys import groups

# Commands that take keys. The value is the command whose configuration contains these keys.
WITH_KEYS = {"train": "train", "sweep": "train", "prepare": "prepare"}


def main(arguments: list[str]) -> None:
    """Print the function of the shell, or the possible words at the end of the typed line.

    The shell selects the words that start with the typed letters. Without such words, it completes paths.
    """
    command = "train"
    line = os.environ.get("COMP_LINE")
    if line is not None:
        _, *words = line.lstrip().split(" ")
        if len(words) < 2:
            print("\n".join(COMMANDS))
        if len(words) < 2 or words[0] not in WITH_KEYS:
            return

        command = WITH_KEYS[words[0]]
        os.environ["COMP_LINE"] = _line_for_hydra(words[1:])
    run(command, ["-sc", *arguments])


def _line_for_hydra(words: list[str]) -> str:
    """Return a line that Hydra can complete. Keep options of groups (model=gpt2), because they decide the keys."""
    *earlier, last = words
    choices = tuple(f"{group}=" for group in groups())
    options = [word for word in earlier if word.startswith(choices)]
    # With -m, Hydra also accepts several options of a group.
    return " ".join(["gptmini", "-m", *options, last])
