"""The commands. Each module parses a command line, calls other packages of gptmini, and prints the results.

`gptmini NAME ...` calls the main function of the module NAME in this package.
"""

import shlex
import sys
from importlib import import_module
from pathlib import Path

from gptmini.commands.mistakes import one_line_errors, print_error
from gptmini.configuration.user_modules import allow_user_modules
from gptmini.system.errors import did_you_mean
from gptmini.system.process import MISUSE
from gptmini.system.version import __version__

COMMANDS = {
    "train": "train a GPT on text, or resume a run",
    "sweep": "train one run for each combination of values, and find the best run",
    "runs": "list all runs in a table",
    "prepare": "tokenise text without training",
    "tokens": "show how a text is split into tokens",
    "sample": "continue prompts with a trained model",
    "chat": "talk to a trained model in the terminal",
    "serve": "serve a trained model: a web page, and an API that OpenAI's clients speak",
    "evaluate": "measure loss, perplexity and bits per byte of a trained model on held-out text",
    "export": "write a trained model as a Hugging Face folder or a GGUF file",
    "import": "create a run from a model that another program trained",
    "report": "write one run or several compared runs as an HTML page",
}

# Commands whose name is not a valid module name.
MODULES = {"import": "import_"}


@one_line_errors()
def main() -> None:
    """Run the command that the command line names. If the command line names no command, list all commands."""
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
        fix = did_you_mean(name, COMMANDS, otherwise=f"choose from {', '.join(COMMANDS)}")
        if Path(name).is_file():
            fix = f"did you mean gptmini train {shlex.quote(name)}?"
        print_error(f"unknown command {shlex.quote(name)}; {fix}")
        sys.exit(MISUSE)


def run(command: str, arguments: list[str]) -> None:
    """Run a command with its arguments.

    Import only the module of this command, because 'sample' does not need Hydra, and 'report' does not need Lightning.
    """
    allow_user_modules(str(Path.cwd()))
    import_module(f"gptmini.commands.{MODULES.get(command, command)}").main(arguments)


def usage() -> str:
    """Return the help text of gptmini, with one line per command."""
    lines = [
        f"gptmini {__version__}: train, watch and sample a GPT from any text",
        "",
    ]
    for name, meaning in COMMANDS.items():
        lines.append(f"  gptmini {name:9} {meaning}")
    lines += [
        "",
        "For the options of a command, run: gptmini COMMAND --help",
        "For the version, run: gptmini --version",
    ]
    return "\n".join(lines)
