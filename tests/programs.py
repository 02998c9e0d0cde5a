"""A program of this package in a process of its own, forked from this one: it need not import torch for seconds."""

import os
import subprocess
import sys
import traceback
from contextlib import suppress

import torch

from gptmini import hardware


def gptmini():
    """Run a command of gptmini as python -m does, whose module must not be loaded before."""
    from gptmini.__main__ import main

    main()


def start(*arguments, program=gptmini, variables=None, **options):
    """Start a program with arguments, as subprocess.Popen would, whose options these are; returns the Popen.

    program is a function without arguments, which reads sys.argv. variables are added to those of the environment.
    """

    def become():
        # Popen waits until a pipe of its own is closed, as exec closes it.
        os.closerange(3, 1024)
        os.environ.update(variables or {})
        run(program, *arguments)

    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # The child never comes to exec. restore_signals would let a closed pipe kill it, which Python does not.
    return subprocess.Popen(
        [sys.executable],
        preexec_fn=become,
        restore_signals=False,
        **(streams | options),
    )


def run(program, *arguments):
    """Run a program in this forked process to its end, and end the process, on the streams 0, 1 and 2."""
    # Threads of OpenMP do not survive a fork: what would use them waits for ever.
    torch.set_num_threads(1)
    hardware._own_threads.cache_clear()

    code = 1
    # Whatever happens, this process must not go on as pytest.
    try:
        sys.argv = ["gptmini", *arguments]
        # pytest has put streams of its own in place of these.
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
        # The reader of stdout may be gone.
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
