"""The ranks of a run on one machine, started by the launcher of torchrun."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.configuration.overrides import as_override, key_of
from gptmini.process import LAUNCHER, SHUTDOWN_TIMEOUT, TROUBLE
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from gptmini.configuration.overrides import Typed
    from gptmini.training import TrainerSettings


class RanksFailed(UserError):
    """The ranks that this process has started have failed.

    Args:
        code: exit code of the first rank that failed.
        killed: which ranks a signal has killed. Every other rank has printed why it failed.
    """

    def __init__(self, code: int, killed: Sequence[str] = ()) -> None:
        reason = f"{', '.join(killed)}; the newest checkpoint is what is left"
        super().__init__(reason if killed else "its ranks have told why")
        self.code = code
        self.is_printed = not killed


def start_ranks(settings: "TrainerSettings", folder: str | None, typed: "Typed") -> None:
    """Start gptmini train once for each device of this machine, and wait for these ranks.

    Each rank is a program in a session of its own, so that a Ctrl-C in the terminal reaches this process alone, which
    passes it on. A second one ends the ranks at once. If this process dies, its ranks save and exit.

    Args:
        settings: the trainer settings, whose devices is a number.
        folder: the value of folder=, in which a job of -m may have named its number.
        typed: what was typed for the run.

    Raises RanksFailed: a rank has ended otherwise than with 0. Raises SystemExit: a signal has ended the run.
    """
    # Importing logging registers a function for the exit of Python, which keeps a program from ending at once.
    import logging

    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from gptmini.training.stopping import heeded_signals

    # The launcher puts handlers of its own in place of these, and leaves them there.
    handlers = {number: signal.getsignal(number) for number in heeded_signals()}
    # Seconds until a rank that was sent a signal is killed. By default these are too few to save a large run.
    os.environ.setdefault(SHUTDOWN_TIMEOUT, str(int(settings.timeout)))

    launch = elastic_launch(
        LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=settings.devices_here,
            run_id="gptmini",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="127.0.0.1",
            max_restarts=0,  # a mistake would be told again at each restart
            signals_to_handle=",".join(number.name for number in handlers),
        ),
        sys.executable,
    )
    arguments = [line for line in typed.overrides if key_of(line) != "folder"]
    if folder is not None:
        arguments.append(as_override("folder", folder))
    if typed.config_dir is not None:
        arguments += ["--config-dir", str(Path(typed.config_dir).absolute())]
    # The launcher would tell of each signal, and of each rank that ends by one, in lines of its own.
    disabled_before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    # On Windows the python of a virtual environment starts another process, whose parent it is.
    if os.name == "posix":
        os.environ[LAUNCHER] = str(os.getpid())
    try:
        # By -P Python looks for no library in the working folder.
        launch("-P", "-m", "gptmini", "train", *arguments)
    except SignalException as stopped:
        sys.exit(128 + stopped.sigval)
    except ChildFailedError as failed:
        # The launcher ends the other ranks by SIGTERM.
        killed = [
            f"rank {rank} was ended by {signal.Signals(-failure.exitcode).name}"
            for rank, failure in failed.failures.items()
            if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM
        ]
        _, first = failed.get_first_failure()
        raise RanksFailed(max(first.exitcode, TROUBLE), killed) from None
    finally:
        os.environ.pop(LAUNCHER, None)
        logging.disable(disabled_before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
