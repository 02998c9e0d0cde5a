"""The training of a run that has begun, from its first step to what is said of its end."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.commands.announcements import Announcer
from gptmini.commands.errors import print_mistake
from gptmini.commands.settings import Settings

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from rich.console import Console

    from gptmini.commands.compose import Typed
    from gptmini.training import GPTModule, TokenDataModule
    from gptmini.training.checkpoints import Best
    from gptmini.training.processes import Group
    from gptmini.training.run import Run
    from gptmini.training.trainer import Logger


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The outcome of a run."""

    folder: Path  # the run's folder
    steps: int  # optimizer steps done in all, those before a resumption included
    best: "Best | None"  # the validation with the lowest loss; None if none was saved
    stopped_by: str | None = None  # a signal's name or the time limit; None if nothing stopped it
    exit_code: int = 0  # the command's: 128 + the number of a signal that stopped the run


def make_console(kind: str) -> "Console":
    """The console of a run; kind is auto, lines or quiet. A further process takes quiet."""
    from gptmini.training.monitoring.console import LastingConsole

    return LastingConsole(
        quiet=kind == "quiet",
        force_terminal=False if kind == "lines" else None,
        soft_wrap=True,
        highlight=False,
    )


def open_announcer(
    console: "Console",
    run: "Run",
    settings: Settings,
    loggers: "Sequence[Logger]",
    typed: "Typed",
) -> Announcer:
    """The announcer of a run that has begun, which writes to the console and to the run's train.log."""
    from rich.console import Console

    from gptmini.training import EventLogger, MetricsLogger
    from gptmini.training.monitoring.console import ConsoleLogger, past_validations

    console_logger = ConsoleLogger(
        console,
        Console(file=run.log, soft_wrap=True, highlight=False),
        settings.trainer.max_steps,
        past_validations(run.curves),
        settings.trainer.validation_due,
    )
    announcer = Announcer(console_logger, typed, loggers)
    for logger in loggers:
        if isinstance(logger, EventLogger):
            logger.on_error = lambda error: announcer.say(
                "events", f"not written: {error.strerror}"
            )
        if isinstance(logger, MetricsLogger):
            logger.on_failure = lambda reason: announcer.say("metrics", f"not written: {reason}")
    return announcer


def log_setup(
    loggers: "Sequence[Logger]",
    config: "DictConfig",
    module: "GPTModule",
    overrides: Sequence[str],
) -> None:
    """Write the configuration to every logger, and to TensorBoard also tables of the model, the data and the overrides.

    Args:
        loggers: the loggers of the run.
        config: the run's configuration.
        module: the model with its tokens.
        overrides: all that was typed for the run so far; the comparison of runs shows what the overrides changed.
    """
    from omegaconf import OmegaConf

    from gptmini.report.tables import comparison, config_table, data_card, model_table
    from gptmini.training import EventLogger

    plain: Any = OmegaConf.to_container(config, resolve=True)
    plain |= {"resume": None, "folder": None}
    for logger in loggers:
        if isinstance(logger, EventLogger):
            logger.log_layout()
            logger.log_table("setup/config", config_table(plain), 0)
            logger.log_table("setup/model", model_table(module.model), 0)
            logger.log_table("setup/data", data_card(module.store), 0)
            logger.log_comparison(*comparison(plain, module.store, module.model, overrides))
        else:
            logger.log_hyperparams(plain)
        logger.save()


def fit(
    group: "Group",
    settings: Settings,
    module: "GPTModule",
    data: "TokenDataModule",
    run: "Run",
    loggers: "Sequence[Logger]",
    announcer: Announcer,
    *,
    began: float,
) -> TrainingResult:
    """Train until the last step, or until a signal, the time limit or a callback ends the run; say how it ended.

    Args:
        group: the processes of the run, which begin to train together.
        settings: the parts of the configuration.
        module: the model with its tokens.
        data: its batches.
        run: the run, which has begun.
        loggers: the loggers of the run; the announcer's console is told too.
        announcer: says how the run ended.
        began: when the command began, in seconds of time.monotonic. The time limit counts from then.
    """
    from gptmini.training import Samples, Stopping, build_trainer
    from gptmini.training.stopping import LOSS

    loggers = [*loggers, announcer.console]
    seconds_left = settings.trainer.max_seconds
    if seconds_left is not None:
        seconds_left -= time.monotonic() - began
    stopping = Stopping(seconds_left, settings.trainer.max_bad_steps, group.meeting)
    trainer = build_trainer(
        module.settings,
        run.folder,
        device=settings.hardware.device,
        precision=settings.hardware.precision,
        callbacks=[*settings.callbacks, stopping],
        loggers=loggers,
        state=run.state,
        begins_trained=module.origin is not None,
        launch=group.launch,
    )
    group.come_together(settings.hardware.device, settings.trainer.timeout)

    try:
        ending = stopping.fit_until_stopped(trainer, module, data)
    finally:
        _finish(loggers)

    checkpoints = checkpoints_of(settings)
    best = None if checkpoints is None else checkpoints.best
    if ending.reason is not None:
        announcer.say_stop(ending, trainer.global_step, run)
        if group.launch.is_further and ending.code == LOSS and ending.speaks:
            last = run.folder / "checkpoints" / "last.ckpt"
            print_mistake(f"the run ended by {ending.reason}; go on from {last}")
    else:
        announcer.say_done(
            trainer,
            run,
            n_steps=trainer.global_step - run.step,
            seconds=time.monotonic() - began,
        )
        samples = next((part for part in settings.callbacks if isinstance(part, Samples)), None)
        announcer.say_results(
            module,
            best=best,
            keeps_best=checkpoints is not None,
            samples=[] if samples is None else samples.texts,
            folder=run.folder,
        )

    if ending.saved and settings.trainer.requeue and not group.launch.is_further:
        from gptmini.training.requeueing import requeue

        announcer.say("requeue", requeue(ending.reason))
    stopping.pass_on()
    return TrainingResult(
        folder=run.folder,
        steps=trainer.global_step,
        best=best,
        stopped_by=ending.reason,
        exit_code=ending.code,
    )


def _finish(loggers: "Sequence[Logger]") -> None:
    """End the entry of each logger that keeps one for the whole process.

    Without that, Weights & Biases would add the next run of the process to the entry of this run.
    """
    for logger in loggers:
        end = getattr(getattr(logger, "experiment", None), "finish", None)
        if end is not None:
            end()


def checkpoints_of(settings: Settings) -> Any:
    """The callback that writes a run's checkpoints; None if there is none."""
    from gptmini.training import RunCheckpoints

    found = (part for part in settings.callbacks if isinstance(part, RunCheckpoints))
    return next(found, None)
