"""Launch the ranks of a run on one machine with the launcher of torchrun."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.configuration.overrides import as_override, key_of
from gptmini.system.errors import UserError
from gptmini.system.process import LAUNCHER, OUT_OF_RESOURCES, SHUTDOWN_TIMEOUT
from gptmini.system.signals import stop_signals

if TYPE_CHECKING:
    from gptmini.configuration.overrides import Typed
    from gptmini.training.trainer_settings import TrainerSettings


class RanksFailed(UserError):
    """The error of a run whose ranks failed, with the exit code of the first rank that failed.

    The argument killed has a text for each rank that a signal killed. All other ranks have printed their error.
    """

    def __init__(self, code: int, killed: Sequence[str] = ()) -> None:
        reason = f"{', '.join(killed)}; resume the run from its latest checkpoint"
        super().__init__(reason if killed else "its ranks printed the error")
        self.code = code
        self.is_printed = not killed


def start_ranks(settings: "TrainerSettings", folder: str | None, typed: "Typed") -> None:
    """Start gptmini train once for each device of this machine, and wait for these ranks.

    Each rank has its own session, so Ctrl-C in the terminal reaches only this process, which passes the signal on. A
    second Ctrl-C ends the ranks immediately. If this process dies, its ranks save and exit.

    Raises RanksFailed if a rank exits with a code other than 0. Raises SystemExit if a signal ended the run.
    """
    # Import logging only here, because logging registers an exit handler. With an exit handler, a program cannot end
    # immediately.
    import logging

    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The launcher replaces these signal handlers and does not restore them.
    handlers = {number: signal.getsignal(number) for number in stop_signals()}
    # After a signal, a rank has this many seconds to end. Then the launcher kills the rank. The launcher's default is
    # too short to save a large model.
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
            max_restarts=0,  # each restart would repeat the same error
            signals_to_handle=",".join(number.name for number in handlers),
        ),
        sys.executable,
    )
    arguments = [line for line in typed.overrides if key_of(line) != "folder"]
    if folder is not None:
        arguments.append(as_override("folder", folder))
    if typed.config_dir is not None:
        arguments += ["--config-dir", str(Path(typed.config_dir).absolute())]
    # The launcher logs its own lines about each signal and each killed rank.
    disabled_before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    # In a virtual environment on Windows, python starts another process. This process is then not the parent of the
    # ranks.
    if os.name == "posix":
        os.environ[LAUNCHER] = str(os.getpid())
    try:
        # -P keeps Python from importing modules from the working directory.
        launch("-P", "-m", "gptmini", "train", *arguments)
    except SignalException as stopped:
        sys.exit(128 + stopped.sigval)
    except ChildFailedError as failed:
        # The launcher itself ends the other ranks with SIGTERM.
        killed = [
            f"rank {rank} was killed by {signal.Signals(-failure.exitcode).name}"
            for rank, failure in failed.failures.items()
            if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM
        ]
        _, first = failed.get_first_failure()
        raise RanksFailed(max(first.exitcode, OUT_OF_RESOURCES), killed) from None
    finally:
        os.environ.pop(LAUNCHER, None)
        logging.disable(disabled_before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
