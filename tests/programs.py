"""Run a gptmini program in a process forked from this one, which saves the seconds of importing torch."""

import os
import subprocess
import sys
import traceback
from contextlib import suppress

import torch

from gptmini.system import hardware


def gptmini():
    """Run a gptmini command like `python -m gptmini`. The command's module must not be imported already."""
    from gptmini.__main__ import main

    main()


class Program(subprocess.Popen):
    """A program in a with block. If the block fails, the program is killed, so that the test ends."""

    def __exit__(self, kind, *rest):
        if kind is not None:
            self.kill()
        super().__exit__(kind, *rest)


def start(*arguments, program=gptmini, variables=None, **options):
    """Start a program with arguments and return its Program. The options are those of subprocess.Popen.

    program is a function without arguments that reads sys.argv. variables are added to the environment.
    """

    def become():
        # Popen waits until one of its own pipes is closed. exec would close it.
        os.closerange(3, 1024)
        os.environ.update(variables or {})
        run(program, *arguments)

    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # The child never calls exec. With restore_signals a closed pipe would kill it, unlike a normal Python process.
    return Program(
        [sys.executable],
        preexec_fn=become,
        restore_signals=False,
        **(streams | options),
    )


def run(program, *arguments):
    """Run a program in this forked process, on the streams 0, 1 and 2, then exit the process."""
    # OpenMP threads do not survive a fork, and code that uses them would wait forever.
    torch.set_num_threads(1)
    hardware._default_threads.cache_clear()

    code = 1
    # Whatever happens, this process must not continue as pytest.
    try:
        sys.argv = ["gptmini", *arguments]
        # pytest has replaced these streams with its own.
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        program()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        # The reader of stdout may have exited.
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
