"""Commands that the GPU benchmark starts in processes of their own."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent  # of the repository


def output_of(command: Sequence[str], *, timeout: float, cwd: Path = ROOT) -> str:
    """Run a command, and return what it printed.

    Args:
        command: the program and its arguments.
        timeout: seconds that the command may take; at least one second is always given.
        cwd: the folder that the command runs in.

    Raises:
        RuntimeError: the command failed; the message has the last line that it wrote.
        subprocess.TimeoutExpired: the command took too long, and was ended.
    """
    result = subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=max(1.0, timeout),
    )
    if result.returncode:
        raise RuntimeError(f"exit code {result.returncode}: {last_line(result)}")
    return result.stdout


def last_line(result: subprocess.CompletedProcess) -> str:
    """Return the last line that a command wrote to stderr, or to stdout if stderr is empty."""
    lines = (result.stderr or result.stdout).splitlines()
    return lines[-1] if lines else "nothing said"
