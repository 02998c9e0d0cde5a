"""Options of commands as data: a command declares a table of its options, and parse_options reads a command line by it.

A row has the name of an option, the type of its value, =DEFAULT if it has a default, and its help after two spaces:

    --batch-size COUNT=32  windows per batch

An option without a type is a switch. Neighbouring rows that start with | exclude each other. After the type, ? means an
argument that may be missing, + means one value or more, and ... means an option that may be repeated.
"""

import argparse
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gptmini.commands.mistakes import print_error
from gptmini.console.escapes import unescaped
from gptmini.system.errors import similar
from gptmini.system.files import expand_home
from gptmini.system.process import MISUSE

# Error messages of argparse (Python 3.11 to 3.14), and the messages that gptmini prints instead.
REWORDED = (
    (r"argument (\S+): (must .*)", r"\1 \2"),
    (r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)", r"\1 must be one of \3, got \2"),
    (r"argument (\S+): invalid int value: (.*)", r"\1 must be an integer, got \2"),
    (r"argument (\S+): invalid float value: (.*)", r"\1 must be a number, got \2"),
    (r"argument (\S+): not allowed with argument (\S+)", r"give either \2 or \1, not both"),
    (r"argument (\S+): expected .*", r"\1 requires a value"),
    (r"argument (\S+): ignored explicit argument (.*)", r"\1 takes no value, got \2"),
    (r"the following arguments are required: runs?", "missing argument: run, such as runs/latest"),
    (r"the following arguments are required: (.*)", r"missing argument: \1; see --help"),
)
# What to write instead of a text among the arguments, by command.
TEXT_FIXES = {
    "gptmini sample": "for a prompt, write --prompt {0}",
    "gptmini chat": "for a message, write echo {0} | gptmini chat RUN",
}
ALIKE = 0.7  # minimum similarity of a misspelt option


class Parser(argparse.ArgumentParser):
    """An argparse parser that prints an error as one line on stderr, like every other mistake."""

    def __init__(self, **settings: Any) -> None:
        """Create the parser. Options must not be abbreviated, because a new option could change their meaning."""
        super().__init__(allow_abbrev=False, **settings)

    def similar_flag(self, word: str) -> str:
        """Return the option that an unknown word probably means, or an empty string.

        A word without dashes must equal the name of an option. A single letter is similar to every short name.
        """
        if len(word.lstrip("-")) == 1:
            return ""
        flags = re.findall(r"--[\w-]+", self.format_usage())
        meant = "--" + word.partition("=")[0].lstrip("-").replace("_", "-")
        if not word.startswith("-"):
            return meant if meant in flags else ""
        abbreviated = [flag for flag in flags if flag.startswith(meant)]
        return abbreviated[0] if abbreviated else similar(meant, flags, ALIKE)

    def error(self, message: str) -> NoReturn:
        """Print argparse's error as one line, and exit with code 2."""
        unknown = re.match(r"unrecognized arguments: (\S+)(.*?)(?: --|$)", message, flags=re.DOTALL)
        if unknown is not None:
            message = self._about_unknown(unknown[1], unknown[2])
        for theirs, ours in REWORDED:
            message = re.sub(f"^{theirs}$", ours, message, flags=re.DOTALL)
        print_error(message)
        raise SystemExit(MISUSE)

    def _about_unknown(self, word: str, more: str) -> str:
        meant = self.similar_flag(word)
        if word.startswith("-"):
            return f"unknown option {word}; {f'did you mean {meant}?' if meant else 'see --help'}"
        if "=" not in word and self.prog in TEXT_FIXES:
            text = shlex.quote(word + more)
            return f"unknown argument {text}; {TEXT_FIXES[self.prog].format(text)}"
        return f"unknown argument {word}; {f'did you mean {meant}?' if meant else 'see --help'}"


def parse_options(
    command: str, description: str, table: str, arguments: Sequence[str], epilog: str = ""
) -> argparse.Namespace:
    """Parse the command line of a command.

    Args:
        command: the name of the command.
        description: what the command does, for --help.
        table: a row for each option, as described at the top of this file.
        arguments: the words after the name of the command.
        epilog: the end of the help.
    """
    parser = Parser(prog=f"gptmini {command}", description=description, epilog=epilog)
    group = parser
    for bar, name, kind, number, default, help in ROW.findall(table):
        if not bar:
            group = parser
        elif group is parser:
            group = parser.add_mutually_exclusive_group()

        if not kind:
            group.add_argument(name, help=help, action="store_true")
            continue
        group.add_argument(
            name,
            help=f"{help} (default: {default})" if default else help,
            type=TYPES.get(kind, str),
            choices=kind.split("|") if "|" in kind else None,
            metavar=kind if name.startswith("-") and "|" not in kind else None,
            default=[] if number == "..." else default or None,
            **NUMBERS[number],
        )
    return parser.parse_args(arguments)


def file_or_folder(text: str) -> Path:
    """Return the value of an option as a path. A leading ~ means the home folder."""
    if not text:
        raise argparse.ArgumentTypeError("must be a file or a folder, got an empty name")
    return Path(expand_home(text))


def at_least_one(text: str) -> int:
    """Return the value of an option as an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text}")
    return int(text)


# The types of values. The value of any other type is a text as it is typed.
TYPES: dict[str, Callable[[str], Any]] = {
    "COUNT": at_least_one,
    "FILE": file_or_folder,
    "FOLDER": file_or_folder,
    "RUN": file_or_folder,
    "INTEGER": int,
    "NUMBER": float,
    "TEXT": unescaped,
}
# The arguments of argparse for the signs after a type.
NUMBERS: dict[str, dict[str, Any]] = {
    "": {},
    "?": {"nargs": "?"},
    "+": {"nargs": "+"},
    "...": {"action": "append"},
}
ROW = re.compile(r"^(\|?) *(\S+)(?: (\S+?)([?+]|\.\.\.)?(?:=(\S+))?)?  +(.+)$", re.MULTILINE)
