"""The result of a run, and how it ended."""

import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gptmini.configuration.messages import exit_code_of, explain
from gptmini.console.printing import print_lines, topic_lines
from gptmini.runs import Run, RunStatus, write_status
from gptmini.training import Best, Callback, GPTModule, RunCheckpoints, StopReason, Trainer


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The outcome of a run."""

    folder: Path  # the run's folder
    steps: int  # optimizer steps done, including the steps before the run was resumed
    # The validation with the lowest loss, or None if no best checkpoint was saved.
    best: Best | None
    # The name of the signal that stopped the run, or "the time limit". None if nothing stopped the run.
    stopped_by: str | None = None
    # Exit code of the command: 128 + the number of the signal that stopped the run, otherwise 0.
    exit_code: int = 0


def result_of(trainer: Trainer, reason: StopReason, run: Run) -> TrainingResult:
    """Return the result of a run that has ended."""
    checkpoints = checkpoints_of(callbacks_of(trainer))
    return TrainingResult(
        folder=run.folder,
        steps=trainer.global_step,
        best=None if checkpoints is None else checkpoints.best,
        stopped_by=reason.stopped_by,
        exit_code=reason.code,
    )


def final_status(trainer: Trainer, reason: StopReason, *, seconds: float) -> RunStatus:
    """Return how a run ended without an error, for the file 'state' in the folder of the run."""
    by = reason.stopped_by
    if by is not None:
        state = "stopped"
    elif trainer.global_step >= trainer.max_steps:
        state = "done"
    else:
        state = "ended"
        by, _ = early_stop(trainer)
    return RunStatus(
        state=state,
        step=trainer.global_step,
        by=by,
        exit_code=reason.code,
        seconds=round(seconds, 1),
    )


@contextmanager
def recording_failure(run: Run, module: GPTModule, *, began: float) -> Iterator[None]:
    """If the block raises an error, write the error to train.log and the state 'failed' to the folder of the run.

    Only the first rank calls this function. The command began at `began`, in seconds of time.monotonic.
    """
    try:
        yield
    except Exception as error:
        line = explain(error)
        lines = traceback.format_exc().splitlines() if line is None else topic_lines("error", line)
        # Before training, module.global_step is 0, also if the run was resumed.
        step = max(run.step, module.global_step)
        end = RunStatus(
            state="failed",
            step=step,
            by=type(error).__name__,
            exit_code=exit_code_of(error),
            reason=line,
            seconds=round(time.monotonic() - began, 1),
        )
        with suppress(OSError):  # the error may be a full disk
            write_status(run.folder, end)
            print_lines(*lines, file=run.log)
        raise


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """Return the callbacks of a trainer."""
    # Another class of Lightning sets this attribute. The type checker cannot see it.
    return trainer.callbacks  # pyrefly: ignore[missing-attribute]


def checkpoints_of(callbacks: Sequence[Callback]) -> RunCheckpoints | None:
    """Return the callback that writes the run's checkpoints, or None if it is off."""
    return next((one for one in callbacks if isinstance(one, RunCheckpoints)), None)


def early_stop(trainer: Trainer) -> tuple[str, str]:
    """Return the name and the reason of the callback that ended a run early, such as Lightning's EarlyStopping."""
    for callback in callbacks_of(trainer):
        text = getattr(callback, "stopping_reason_message", None)
        if text:
            return type(callback).__name__, " ".join(text.split())
    return "a callback", "a callback requested it"
