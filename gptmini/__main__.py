"""The program gptmini, as in python -m gptmini."""

import signal
from importlib import import_module


def main(command: str | None = None) -> None:
    """Run a command on the arguments of the command line.

    Args:
        command: the command's name; None for the one that the first argument names.
    """
    # Python would print a traceback for a Ctrl-C that comes while the command is imported. The system ends the program
    # without one, until the command has imported what it needs; see gptmini/commands/start_up.py. A SIGINT that the
    # caller has turned off stays off: a shell does so for what runs in the background.
    is_heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    module = "gptmini.commands" if command is None else f"gptmini.commands.{command}"
    try:
        import_module(module).main()
    finally:
        if is_heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    main()
