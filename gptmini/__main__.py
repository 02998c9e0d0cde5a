"""Start the program gptmini, also as `python -m gptmini`."""

import sys
from pathlib import Path

from gptmini import commands
from gptmini.system import process


def main(command: str | None = None) -> None:
    """Run a command with the arguments of the command line. If command is None, the first argument names it."""
    process.open_closed_streams()
    process.choose_spin_count()
    process.watch_launcher()
    process.defer_gc_and_sigint()

    code = 1  # exit code of an error with a traceback
    try:
        if command is None:
            commands.main()
        else:
            commands.run(command, sys.argv[1:])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
        raise
    finally:
        process.set_exit_code(code)
        process.restore_gc_and_sigint()


if __name__ == "__main__":
    # python -m puts the working folder at the start of sys.path. A file such as hydra.py there would replace a
    # library.
    if not sys.flags.safe_path and sys.path[0] in ("", str(Path.cwd())):
        del sys.path[0]
    main()
