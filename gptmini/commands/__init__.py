"""The commands: each file parses a command line, calls the packages below, and prints.

`gptmini NAME ...` runs the main function of the module NAME in this package.
"""

import difflib
import shlex
import sys
from importlib import import_module
from pathlib import Path

from gptmini.commands.mistakes import one_line_errors, print_mistake
from gptmini.configuration.own_modules import find_in
from gptmini.process import MISUSE
from gptmini.version import __version__

COMMANDS = {
    "train": "train a GPT on a text, or go on with a run",
    "sweep": "train a run for each of many values, and find the best",
    "runs": "a table of all runs",
    "prepare": "tokenise a text without training on it",
    "sample": "continue prompts with a trained model",
    "evaluate": "loss, perplexity and bits per byte of a trained model on held-out text",
    "export": "a trained model for other programs, as a Hugging Face folder or a GGUF file",
    "import": "a run of a model that another program has trained",
    "report": "a run, or several beside each other, as one HTML page",
}

# Modules whose command has a name that Python keeps for itself.
MODULES = {"import": "import_"}


@one_line_errors()
def main() -> None:
    """Run the command that the command line names; without a name, list the commands."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    arguments = sys.argv[2:]

    if name == "help" and arguments:
        name, *arguments = [*arguments, "--help"]
    if name in COMMANDS:
        run(name, arguments)
    elif name == "--version":
        print(__version__)
    elif name in ("help", "--help", "-h"):
        print(usage())
    else:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        nearest = f"; the nearest is {close[0]}" if close else ""
        print_mistake(
            f"gptmini has no command {shlex.quote(name)}; it has {', '.join(COMMANDS)}{nearest}"
        )
        sys.exit(MISUSE)


def run(command: str, arguments: list[str]) -> None:
    """Run a command on arguments.

    Each command has its own module, which is imported only now: sample needs no Hydra, report no Lightning.
    """
    find_in(str(Path.cwd()))
    import_module(f"gptmini.commands.{MODULES.get(command, command)}").main(arguments)


def usage() -> str:
    """The help text of gptmini, with one line for each command."""
    lines = [
        f"gptmini {__version__}: train, watch and sample a GPT from any text",
        "",
    ]
    for name, meaning in COMMANDS.items():
        lines.append(f"  gptmini {name:9} {meaning}")
    lines += [
        "",
        "gptmini help NAME describes one command; gptmini --version prints the version",
    ]
    return "\n".join(lines)
