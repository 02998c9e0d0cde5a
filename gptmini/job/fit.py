"""Train a run that has started, from its first step to its last."""

import time
from collections.abc import Sequence

from gptmini.job.loggers import finish
from gptmini.job.result import final_status
from gptmini.runs import Run, write_status
from gptmini.training import (
    BadSteps,
    Callback,
    ConsoleLogger,
    GPTModule,
    Logger,
    Ranks,
    StepProgress,
    Stopping,
    StopReason,
    TokenDataModule,
    Trainer,
    build_trainer,
)


def fit(
    ranks: Ranks,
    module: GPTModule,
    data: TokenDataModule,
    run: Run,
    callbacks: Sequence[Callback],
    loggers: Sequence[Logger],
    *,
    began: float,
) -> tuple[Trainer, StopReason]:
    """Train until the last step, or until a signal, the time limit or a callback ends the run.

    All ranks start to train together. On the first rank, one of the loggers is the console. The time limit counts from
    `began`, in seconds of time.monotonic. Return the trainer, and the reason why training stopped.
    """
    settings = module.settings
    consoles = [logger for logger in loggers if isinstance(logger, ConsoleLogger)]
    seconds_left = settings.max_seconds
    if seconds_left is not None:
        seconds_left -= time.monotonic() - began
    stopping = Stopping(seconds_left)
    bad_steps = BadSteps(settings.max_bad_steps)
    trainer = build_trainer(
        module,
        run.folder,
        callbacks=[*callbacks, bad_steps, stopping, *map(StepProgress, consoles)],
        loggers=loggers,
        state=run.state,
        world=ranks.world,
    )
    ranks.join(module.hardware.device, seconds=settings.timeout, folder=run.folder)
    try:
        reason = stopping.fit_until_stopped(trainer, module, data)
        ranks.leave_together = reason.between_steps or reason.stopped_by is None
    finally:
        finish(loggers)
    if trainer.is_global_zero:
        seconds = time.monotonic() - began
        write_status(run.folder, final_status(trainer, reason, seconds=seconds))
    return trainer, reason
