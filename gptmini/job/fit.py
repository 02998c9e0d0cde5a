"""Train a run that has started, from its first step to its last."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gptmini.job.loggers import finish
from gptmini.job.result import final_status
from gptmini.training.settings import Settings

if TYPE_CHECKING:
    from gptmini.runs import Run
    from gptmini.training.datamodule import TokenDataModule
    from gptmini.training.devices.ranks import Ranks
    from gptmini.training.module import GPTModule
    from gptmini.training.stopping import StopReason
    from gptmini.training.trainer import Logger, Trainer


def fit(
    ranks: "Ranks",
    settings: Settings,
    module: "GPTModule",
    data: "TokenDataModule",
    run: "Run",
    loggers: "Sequence[Logger]",
    *,
    began: float,
) -> "tuple[Trainer, StopReason]":
    """Train until the last step, or until a signal, the time limit or a callback ends the run.

    All ranks start to train together. On the first rank, one of the loggers is the console. The time limit counts from
    `began`, in seconds of time.monotonic. Return the trainer, and the reason why training stopped.
    """
    from gptmini.runs import write_status
    from gptmini.training.callbacks.bad_steps import BadSteps
    from gptmini.training.loggers.console import ConsoleLogger, StepProgress
    from gptmini.training.stopping import Stopping
    from gptmini.training.trainer import build_trainer

    consoles = [logger for logger in loggers if isinstance(logger, ConsoleLogger)]
    seconds_left = settings.trainer.max_seconds
    if seconds_left is not None:
        seconds_left -= time.monotonic() - began
    stopping = Stopping(seconds_left)
    bad_steps = BadSteps(settings.trainer.max_bad_steps)
    trainer = build_trainer(
        settings,
        module,
        run.folder,
        callbacks=[bad_steps, stopping, *map(StepProgress, consoles)],
        loggers=loggers,
        state=run.state,
        world=ranks.world,
    )
    ranks.join(settings.hardware.device, seconds=settings.trainer.timeout, folder=run.folder)
    try:
        reason = stopping.fit_until_stopped(trainer, module, data)
        ranks.leave_together = reason.between_steps or reason.stopped_by is None
    finally:
        finish(loggers)
    if trainer.is_global_zero:
        seconds = time.monotonic() - began
        write_status(run.folder, final_status(trainer, reason, seconds=seconds))
    return trainer, reason
