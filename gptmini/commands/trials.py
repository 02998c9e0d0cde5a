"""One run of a sweep, in a process that a launcher has started."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gptmini.commands.errors import explain
from gptmini.commands.launching import dispatch
from gptmini.commands.multirun import Assignment, Outcome
from gptmini.launch import TRIAL
from gptmini.user_error import UserError


@dataclass(frozen=True)
class TrialJob:
    """What a launcher calls: it trains the trial of a folder, or goes on with the trial's run."""

    sweep: str  # folder of the sweep
    number: int

    def __call__(self) -> None:
        """Train, unless another process does, or has done it."""
        from gptmini.search import TrialFolder

        folder = TrialFolder(Path(self.sweep), self.number)
        with folder.locked() as is_ours:
            if is_ours and folder.read_result() is None:
                _train(folder)

    def checkpoint(self) -> Any:
        """What submitit puts into the queue of SLURM again when the time of a job ends: the same call."""
        from gptmini.search.launchers import again

        return again(self)


def _train(folder: Any) -> None:
    """Train the trial of a folder, and write its result unless a signal or a loss has stopped it."""
    from gptmini.commands.train import check_job, run_job
    from gptmini.search import Result

    order = folder.read_order()
    assert order is not None  # the sweep has written it before it started this process
    os.chdir(order.folder)
    _leave_terminal()
    for name, value in order.environment.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    handed_back = folder.path.absolute() / "outcome.json"
    handed_back.unlink(missing_ok=True)
    assignment = Assignment(label=order.label, outcome=str(handed_back))
    os.environ.update(assignment.hand_over())
    os.environ[TRIAL] = order.job

    began = time.monotonic()
    try:
        dispatch("train", run_job, arguments=order.arguments, check=check_job)
    except Exception as error:
        reason = " ".join((explain(error) or f"{type(error).__name__}: {error}").split())
        # A mistake would come again. A full disk, or memory that another program has, may pass.
        if type(error) is UserError:
            folder.write_result(Result(seconds=time.monotonic() - began, reason=reason))
        else:
            folder.write_trouble(reason)
        raise

    outcome = assignment.read()
    assert outcome is not None
    folder.write_result(_result_of(outcome, time.monotonic() - began))


def _leave_terminal() -> None:
    """Let a Ctrl-C in the terminal of the sweep reach the sweep alone, which then tells its runs to end."""
    is_leader = os.getpgrp() == os.getpid()
    if not is_leader:
        os.setpgid(0, 0)


def _result_of(outcome: Outcome, seconds: float) -> Any:
    """The result of a run that has ended by itself."""
    from gptmini.search import Result

    reason = None
    if outcome.loss is None:
        reason = "it kept no best validation; callbacks.checkpoints must be there"
    return Result(
        seconds=seconds,
        reason=reason,
        run=outcome.folder,
        loss=outcome.loss,
        bits_per_byte=outcome.bits_per_byte,
        step=outcome.step,
    )
