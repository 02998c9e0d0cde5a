"""Show how a tokenizer splits a text: gptmini tokens RUN TEXT [--json]."""

import json
import sys
from collections.abc import Sequence

from gptmini.commands.mistakes import one_line_errors
from gptmini.commands.options import parse_options
from gptmini.commands.prompts import prompt_from
from gptmini.console.printable import printable
from gptmini.console.printing import print_lines, print_resolved_run
from gptmini.console.table import aligned

# In color, each token has the next one of these styles of Rich.
STYLES = ("black on bright_cyan", "black on bright_yellow")
OPTIONS = r"""
run RUN  run folder such as runs/latest, checkpoint file, exported folder, or prepared folder such as data/NAME
text TEXT  text to split, such as 'one\ntwo', or - to read it from stdin
--json  print a JSON object instead of a table
"""
DESCRIPTION = "Show how a text is split into tokens: the id, the text and the bytes of each token."


@one_line_errors()
def main(arguments: list[str]) -> None:
    """Encode the text, and print its tokens."""
    options = parse_options("tokens", DESCRIPTION, OPTIONS, arguments)

    from gptmini.loading import load_tokenizer
    from gptmini.runs import named_run

    text = options.text
    if text == "-":
        text = prompt_from(sys.stdin.buffer.read(), "stdin")
    run = named_run(options.run, saved=True)
    tokenizer = load_tokenizer(run)
    tokens = [(i, tokenizer.token_bytes(i)) for i in tokenizer.encode(text)]
    print_resolved_run(options.run, run)

    if options.json:
        print(json.dumps({"tokens": [as_json(i, data) for i, data in tokens]}))
        return
    show_table(tokens, n_bytes=len(text.encode("utf-8", "surrogatepass")))


def as_json(token: int, data: bytes) -> dict:
    """Return a token as a JSON object. Its text is null if its bytes are not UTF-8, such as a part of a character."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = None
    return {"id": token, "text": text, "bytes": list(data)}


def show_table(tokens: Sequence[tuple[int, bytes]], *, n_bytes: int) -> None:
    """Print the number of tokens, and a row for each token. If the terminal has colors, print the split text first."""
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    if console.color_system is not None and not console.no_color:
        line = Text()
        for i, (_, data) in enumerate(tokens):
            line.append(escaped(data), style=STYLES[i % len(STYLES)])
            if data.endswith(b"\n"):
                line.append("\n")
        console.print(line)

    ratio = f", bytes per token: {n_bytes / len(tokens):.2f}" if tokens else ""
    print_lines(f"tokens: {len(tokens):,}, bytes: {n_bytes:,}{ratio}")
    rows = [(f"{i:8}", f'"{escaped(data)}"', data.hex(" ")) for i, data in tokens]
    print_lines(*aligned(rows))


def escaped(data: bytes) -> str:
    r"""Return the text of a token. Unprintable characters, backslashes and parts of a character become escapes.

    For example, a line break becomes \n, and the first byte of é becomes \xc3.
    """
    return printable(data.replace(b"\\", rb"\\").decode("utf-8", "backslashreplace"))
