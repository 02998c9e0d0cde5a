"""The training of a run that is planned and found, from its first step to what is said of its end."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.commands.announcements import Announcer
from gptmini.commands.automatic import may_requeue, requeue
from gptmini.commands.errors import print_mistake
from gptmini.commands.plan import Fitted, Plan

if TYPE_CHECKING:
    from rich.console import Console

    from gptmini.training.checkpointing import Best
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


def prepare_process(plan: Plan) -> None:
    """Set what holds for the whole process: memory that is kept for reuse, threads, and how matrices are multiplied."""
    from gptmini.hardware import keep_freed_memory, use_tf32, use_threads

    keep_freed_memory()
    if plan.hardware.tf32:
        use_tf32()
    use_threads(plan.settings.threads, n_processes=plan.settings.devices_here)


def make_console(kind: str) -> "Console":
    """The console of a run; kind is auto, lines or quiet. A further process takes quiet."""
    from gptmini.training.monitoring.console import LastingConsole

    return LastingConsole(
        quiet=kind == "quiet",
        force_terminal=False if kind == "lines" else None,
        soft_wrap=True,
        highlight=False,
    )


def open_announcer(console: "Console", run: "Run", plan: Plan, config_dir: str | None) -> Announcer:
    """The announcer of a run that has begun, which writes to the console and to the run's train.log."""
    from rich.console import Console

    from gptmini.training.monitoring.console import ConsoleLogger, past_validations

    log = Console(file=run.log, soft_wrap=True, highlight=False)
    console_logger = ConsoleLogger(
        console,
        log,
        plan.settings.max_steps,
        past_validations(run.curves),
        plan.settings.validation_due,
    )
    return Announcer(console_logger, config_dir)


def fit_and_announce(
    group: "Group",
    plan: Plan,
    fitted: Fitted,
    run: "Run",
    loggers: "Sequence[Logger]",
    announcer: Announcer,
    *,
    began: float,
) -> TrainingResult:
    """Train until the last step, or until a signal, the time limit or a callback ends the run; say how it ended.

    Args:
        group: the processes of the run, which begin to train together.
        plan: the checked configuration.
        fitted: the plan built for the run's text.
        run: the run, whose folder exists.
        loggers: the loggers of the run; the announcer's console is told too.
        announcer: says how the run ended.
        began: when the command began, in seconds of time.monotonic. The time limit counts from then.
    """
    from gptmini.training import (
        ContentionNotice,
        RunCheckpoints,
        Samples,
        Stopping,
        build_trainer,
    )
    from gptmini.training.stopping import LOSS

    loggers = [*loggers, announcer.console]
    seconds_left = plan.max_seconds
    if seconds_left is not None:
        seconds_left -= time.monotonic() - began
    stopping = Stopping(seconds_left, plan.settings.max_bad_steps, group.meeting)
    trainer = build_trainer(
        fitted.module.settings,
        run.folder,
        device=plan.hardware.device,
        precision=plan.hardware.precision,
        callbacks=[*fitted.callbacks, ContentionNotice(), stopping],
        loggers=loggers,
        state=run.state,
        begins_trained=fitted.module.origin is not None,
        launch=group.launch,
    )
    group.come_together(plan.hardware.device, plan.settings.timeout)

    try:
        ending = stopping.fit_until_stopped(trainer, fitted.module, fitted.data)
    finally:
        finish_loggers(loggers)

    checkpoints = _first(fitted.callbacks, RunCheckpoints)
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
        samples = _first(fitted.callbacks, Samples)
        announcer.say_results(
            fitted.module,
            best=best,
            keeps_best=checkpoints is not None,
            samples=[] if samples is None else samples.texts,
            folder=run.folder,
        )

    if ending.saved and may_requeue(group.launch, run.folder, ending.reason):
        announcer.say("requeue", requeue(group.launch))
    stopping.pass_on()
    return TrainingResult(
        folder=run.folder,
        steps=trainer.global_step,
        best=best,
        stopped_by=ending.reason,
        exit_code=ending.code,
    )


def finish_loggers(loggers: "Sequence[Logger]") -> None:
    """End the entry of each logger that keeps one for the whole process.

    Without that, Weights & Biases would add the next run of the process to the entry of this run.
    """
    for logger in loggers:
        experiment = getattr(logger, "experiment", None)
        end = getattr(experiment, "finish", None)
        if end is not None:
            end()


def _first(callbacks: Sequence[Any], kind: type) -> Any:
    """The first callback of a kind, or None."""
    return next((callback for callback in callbacks if isinstance(callback, kind)), None)
