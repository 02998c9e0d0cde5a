"""Launch the ranks of a run on one machine with the launcher of torchrun."""

import logging
import os
import signal
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher import api

from gptmini.configuration.compose import as_override
from gptmini.configuration.request import UserRequest, key_of
from gptmini.system.errors import RanksFailed
from gptmini.system.process import LAUNCHER, OUT_OF_RESOURCES, SHUTDOWN_TIMEOUT
from gptmini.system.signals import stop_signals
from gptmini.training import TrainerSettings


def start_ranks(settings: TrainerSettings, folder: str | None, request: UserRequest) -> None:
    """Start gptmini train once for each device of this machine, and wait for these ranks.

    Each rank has its own session, so Ctrl-C in the terminal reaches only this process, which passes the signal on. A
    second Ctrl-C ends the ranks immediately. If this process dies, its ranks save and exit.

    Raises RanksFailed if a rank exits with a code other than 0. Raises SystemExit if a signal ended the run.
    """
    # The launcher replaces these signal handlers and does not restore them.
    handlers = {number: signal.getsignal(number) for number in stop_signals()}
    # After a signal, a rank has this many seconds to end. Then the launcher kills the rank. The launcher's default is
    # too short to save a large model.
    os.environ.setdefault(SHUTDOWN_TIMEOUT, str(int(settings.timeout)))

    launch = api.elastic_launch(
        api.LaunchConfig(
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
    arguments = [line for line in request.overrides if key_of(line) != "folder"]
    if folder is not None:
        arguments.append(as_override("folder", folder))
    if request.config_dir is not None:
        arguments += ["--config-dir", str(Path(request.config_dir).absolute())]
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
