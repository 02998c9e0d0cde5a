"""The training of a run that has begun, from its first step to what is said of its end."""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.commands.announcements import Announcer, ended_by
from gptmini.commands.initial import initial_model
from gptmini.commands.parts import Settings

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from rich.console import Console

    from gptmini.checkpoint.training_state import TrainingState
    from gptmini.commands.compose import Typed
    from gptmini.data import TokenStore
    from gptmini.runs import Run, RunState
    from gptmini.training import GPTModule, TokenDataModule
    from gptmini.training.checkpoints import Best
    from gptmini.training.ranks import Ranks
    from gptmini.training.stopping import Ending
    from gptmini.training.trainer import Logger, Trainer


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The outcome of a run."""

    folder: Path  # the run's folder
    steps: int  # optimizer steps done in all, those before a resumption included
    best: "Best | None"  # the validation with the lowest loss; None if none was saved
    stopped_by: str | None = None  # a signal's name or the time limit; None if nothing stopped it
    exit_code: int = 0  # the command's: 128 + the number of a signal that stopped the run


def make_console(kind: str) -> "Console":
    """The console of a run; kind is auto, lines or quiet."""
    from gptmini.training.monitoring.console import LastingConsole

    # FORCE_COLOR, which notebooks and servers that test set, would let Rich draw a bar where nothing can move it.
    has_terminal = sys.stdout is not None and sys.stdout.isatty()
    return LastingConsole(
        quiet=kind == "quiet",
        force_terminal=None if has_terminal and kind != "lines" else False,
        force_jupyter=False,  # in a notebook Rich would print what is to be quiet
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
    from gptmini.training.monitoring.console import ConsoleLogger

    console_logger = ConsoleLogger(
        console,
        # By itself Rich would print to a notebook in place of the file, and colours where FORCE_COLOR asks for them.
        Console(
            file=run.log,
            force_terminal=False,
            force_jupyter=False,
            soft_wrap=True,
            highlight=False,
        ),
        settings.trainer.max_steps,
        run.lines,
        settings.trainer.validation_due,
    )
    announcer = Announcer(console_logger, typed, loggers)
    for logger in loggers:
        if isinstance(logger, MetricsLogger):
            logger.on_error = lambda error: announcer.say(
                "metrics", f"points are lost: {error.strerror}"
            )
        if isinstance(logger, EventLogger):
            logger.on_error = lambda error: announcer.say(
                "events", f"no longer written, until the run is resumed: {error.strerror}"
            )
    return announcer


def log_setup(
    loggers: "Sequence[Logger]",
    config: "DictConfig",
    module: "GPTModule",
    run: "Run",
) -> None:
    """Write to every logger what the run is: its configuration, and where a logger takes tables its model and data.

    TensorBoard is also given what a resumed run has logged before, and a comparison by all that was typed for the run.

    Args:
        loggers: the loggers of the run.
        config: the run's configuration.
        module: the model with its tokens.
        run: the run, which has begun.
    """
    from omegaconf import OmegaConf

    from gptmini.report.tables import comparison, config_table, data_card, model_table
    from gptmini.training import EventLogger
    from gptmini.training.monitoring.logger import RunLogger

    plain: Any = OmegaConf.to_container(config, resolve=True)
    plain |= {"resume": None, "folder": None}
    for logger in loggers:
        if isinstance(logger, EventLogger):
            if run.resumed:
                logger.write_anew(run.lines)
            logger.log_layout()
            logger.log_comparison(*comparison(plain, module.store, module.model, run.overrides))
        if isinstance(logger, RunLogger):
            logger.log_table("setup/config", config_table(plain), 0)
            logger.log_table("setup/model", model_table(module.model), 0)
            logger.log_table("setup/data", data_card(module.store), 0)
        logger.log_hyperparams(plain)
        logger.save()


def assemble(
    settings: Settings, store: "TokenStore", state: "TrainingState | None"
) -> "tuple[GPTModule, TokenDataModule]":
    """The module and the batches of a run on the tokens of a text; callbacks get their state of a checkpoint.

    Raises UserError: the text is too short, the settings do not fit the text, or the state is that of another run.
    """
    from gptmini.tokenizer import from_dict
    from gptmini.training import trainer

    check_prompts(settings, store)
    n_vocab = from_dict(store.tokenizer_state).n_vocab
    # A run without a step done begins again, with callbacks that have seen nothing.
    if state is not None and state.step > 0:
        trainer.restore_callbacks(settings.callbacks, state)

    initial = None
    origin = None if state is None else state.origin
    if state is None and settings.root.init_from is not None:
        initial, origin = initial_model(settings.root.init_from)
    return trainer.assemble(
        store,
        settings.model.with_vocab_size(n_vocab),
        settings.trainer,
        optimizer=settings.optimizer.build,
        schedule=settings.schedule,
        seed=settings.root.seed,
        compile=settings.hardware.compile,
        device=settings.hardware.device,
        precision=settings.hardware.precision,
        state=state,
        initial=initial,
        origin=origin,
        freeze=settings.root.frozen,
    )


def check_prompts(settings: Settings, store: "TokenStore") -> None:
    """Raise UserError for a prompt of a callback that the tokenizer of a text cannot encode."""
    from gptmini.tokenizer import from_dict
    from gptmini.training import Samples

    tokenizer = from_dict(store.tokenizer_state)
    for callback in settings.callbacks:
        if isinstance(callback, Samples):
            callback.check(tokenizer)


def fit(
    ranks: "Ranks",
    settings: Settings,
    module: "GPTModule",
    data: "TokenDataModule",
    run: "Run",
    loggers: "Sequence[Logger]",
    *,
    began: float,
) -> "tuple[Trainer, Ending]":
    """Train until the last step, or until a signal, the time limit or a callback ends the run.

    Args:
        ranks: the ranks of the run, which begin to train together.
        settings: the parts of the configuration.
        module: the model with its tokens.
        data: its batches.
        run: the run, which has begun.
        loggers: the loggers of the run, the console among them where this rank speaks.
        began: when the command began, in seconds of time.monotonic. The time limit counts from then.
    """
    from gptmini.runs import RunState, write_state
    from gptmini.training import Stopping, build_trainer

    seconds_left = settings.trainer.max_seconds
    if seconds_left is not None:
        seconds_left -= time.monotonic() - began
    stopping = Stopping(seconds_left, settings.trainer.max_bad_steps)
    trainer = build_trainer(
        module.settings,
        run.folder,
        device=settings.hardware.device,
        precision=settings.hardware.precision,
        callbacks=[*settings.callbacks, stopping],
        loggers=loggers,
        state=run.state,
        begins_trained=module.origin is not None,
        world=ranks.world,
    )
    ranks.join(settings.hardware.device, seconds=settings.trainer.timeout, folder=run.folder)
    try:
        ending = stopping.fit_until_stopped(trainer, module, data)
        ranks.leave_together = ending.saved or ending.stopped_by is None
    except Exception as error:
        if trainer.is_global_zero:
            end = RunState(state="failed", step=trainer.global_step, by=type(error).__name__)
            with suppress(OSError):  # the disk may be full, which is what the error says
                write_state(run.folder, end)
        raise
    finally:
        _finish(loggers)
    if trainer.is_global_zero:
        write_state(run.folder, end_of(trainer, ending))
    return trainer, ending


def say_end(
    announcer: Announcer,
    trainer: "Trainer",
    ending: "Ending",
    module: "GPTModule",
    settings: Settings,
    run: "Run",
    *,
    seconds: float,
) -> None:
    """Say how a run ended, and put the job of Slurm that it is into the queue again where that was asked for.

    seconds is how long the command took.
    """
    from gptmini.training import Samples

    if ending.stopped_by is not None:
        announcer.say_stop(ending, trainer.global_step, run)
    else:
        checkpoints = checkpoints_of(settings)
        samples = next((part for part in settings.callbacks if isinstance(part, Samples)), None)
        announcer.say_done(trainer, run, n_steps=trainer.global_step - run.step, seconds=seconds)
        announcer.say_results(
            module,
            best=None if checkpoints is None else checkpoints.best,
            keeps_best=checkpoints is not None,
            samples=[] if samples is None else samples.texts,
            folder=run.folder,
        )

    if ending.saved and settings.trainer.requeue:
        from gptmini.training.requeueing import requeue

        announcer.say("requeue", requeue(ending.stopped_by))


def result_of(
    trainer: "Trainer", ending: "Ending", settings: Settings, run: "Run"
) -> TrainingResult:
    """What came of a run that has ended."""
    checkpoints = checkpoints_of(settings)
    return TrainingResult(
        folder=run.folder,
        steps=trainer.global_step,
        best=None if checkpoints is None else checkpoints.best,
        stopped_by=ending.stopped_by,
        exit_code=ending.code,
    )


def end_of(trainer: "Trainer", ending: "Ending") -> "RunState":
    """How a run ended that no error ended, for the file state in its folder."""
    from gptmini.runs import RunState

    step = trainer.global_step
    if ending.stopped_by is not None:
        return RunState(state="stopped", step=step, by=ending.stopped_by)
    if step >= trainer.max_steps:
        return RunState(state="done", step=step)
    name, _ = ended_by(trainer)
    if name == "Pruning":
        return RunState(state="pruned", step=step)
    return RunState(state="ended", step=step, by=name)


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
