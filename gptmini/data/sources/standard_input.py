"""Text from another program: what is piped into the command, kept in a file while the command lasts."""

import atexit
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

from gptmini.files import naming
from gptmini.user_error import UserError

NAME = "-"  # the path that stands for standard input, as in other programs


@cache
def standard_input() -> Path:
    """The file that holds what was piped into this process; it is deleted when the process ends.

    A text is read several times, and a pipe only once.
    Raises UserError: nothing is piped.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError(
            "data.path=- reads the text that is piped into the command, as in cat *.txt | gptmini prepare ..., "
            "and nothing is"
        )
    folder = Path(tempfile.mkdtemp(prefix="gptmini-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "stdin.txt"
    with naming(path), path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    if not path.stat().st_size:
        raise UserError("data.path=- reads the text that is piped into the command, and got none")
    return path
