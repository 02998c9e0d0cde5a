"""Train a GPT: gptmini train [KEY=VALUE ...]; --help lists groups and keys."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.checks import UserError
from gptmini.commands.announcements import Announcer
from gptmini.commands.errors import explain
from gptmini.commands.launching import compose_checked, run_configured
from gptmini.commands.plan import Fitted, Plan, build, check_configuration, open_loggers, open_tokens
from gptmini.commands.start_up import resume_collector

if TYPE_CHECKING:  # a mistake in a key is told before torch and Lightning are imported, which takes seconds
    from omegaconf import DictConfig
    from rich.console import Console

    from gptmini.training import GPTModule
    from gptmini.training.checkpointing import Best
    from gptmini.training.run import Run
    from gptmini.training.trainer import Logger


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What a run came to."""

    folder: Path  # of the run
    steps: int  # optimizer steps done in all
    best: "Best | None"  # validation with the lowest loss; None if none was saved
    stopped_by: str | None = None  # a signal's name or the time limit; None if the run came to its end
    exit_code: int = 0  # of the command: 128 + the signal's number, if one stopped the run


def train(config: "DictConfig", overrides: Sequence[str] = ()) -> TrainingResult:
    """Check everything, prepare the tokens, train from the first step or the one reached, and say what came of it.

    overrides are what was typed, KEY=VALUE each, for whoever compares runs.
    """
    began = time.monotonic()
    plan = check_configuration(config)
    resume_collector()
    prepare_process(plan)

    from gptmini.training.run import open_run

    console = make_console(config.console)
    with open_run(config.resume, runs_dir=config.runs_dir, name=config.name) as run:
        with console.status("reading text"):
            store, prepared_now = open_tokens(config, run.state)
        fitted = build(plan, store, run.state)
        config.trainer.batch_size = fitted.module.settings.batch_size  # found, where it was auto
        run.begin(stored_yaml(config), without_resume(overrides))

        announcer = open_announcer(console, run, plan)
        loggers = open_loggers(plan, run, announcer)
        log_setup(loggers, config, fitted.module, run.overrides)
        announcer.say_start(run, fitted.module, plan.hardware, prepared_now=prepared_now, runs_dir=config.runs_dir)
        return fit_and_announce(plan, fitted, run, [*loggers, announcer.console], announcer, began=began)


def train_from_python(overrides: Sequence[str]) -> TrainingResult:
    """Train for overrides as they would be typed; gptmini.train is this function.

    Raises UserError: a mistake, or several devices, whose processes Lightning starts with the caller's command line.
    """
    for override in overrides:
        if type(override) is not str:
            raise UserError(f"an override must be text, as in trainer.max_steps=50, got {override!r}")
    try:
        config = compose_checked("train", list(overrides))
    except Exception as error:
        mistake = explain(error)
        if mistake is None or isinstance(error, UserError):
            raise
        raise UserError(" ".join(mistake.split())) from error

    if config.trainer.devices != 1:
        raise UserError(
            f"trainer.devices must be 1 in gptmini.train, got {config.trainer.devices}; "
            "for several use the command gptmini train"
        )
    return train(config, overrides)


def run_job(config: "DictConfig", overrides: Sequence[str]) -> float | None:
    """Train, as a job of Hydra: the best validation loss is what a sweeper may minimise; a signal ends the program."""
    result = train(config, overrides)
    if result.exit_code:
        sys.exit(result.exit_code)
    return None if result.best is None else result.best.loss


def main(arguments: list[str] | None = None) -> None:
    """Train for overrides, those of the command line if none are given."""
    run_configured("train", run_job, arguments=arguments, check=check_configuration)


def prepare_process(plan: Plan) -> None:
    """Set what holds for the whole process: the memory that it keeps, its threads, and how it multiplies matrices."""
    import torch

    from gptmini.hardware import keep_freed_memory, use_tf32

    keep_freed_memory()
    if plan.hardware.tf32:
        use_tf32()
    if plan.settings.threads is not None:
        torch.set_num_threads(plan.settings.threads)


def log_setup(loggers: "Sequence[Logger]", config: "DictConfig", module: "GPTModule", overrides: Sequence[str]) -> None:
    """Write down what the run is, and how it compares with others: by what overrides changed."""
    from omegaconf import OmegaConf

    from gptmini.report.tables import comparison, config_table, data_card, model_table
    from gptmini.training import EventLogger

    plain = OmegaConf.to_container(config, resolve=True)
    plain["resume"] = None
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


def fit_and_announce(
    plan: Plan, fitted: Fitted, run: "Run", loggers: "Sequence[Logger]", announcer: Announcer, *, began: float
) -> TrainingResult:
    """Train until the last step, or until a signal, the time limit or a callback ends the run; say how it ended."""
    from gptmini.training import RunCheckpoints, Samples, Stopping, build_trainer

    max_seconds = plan.max_seconds
    if max_seconds is not None:
        max_seconds -= time.monotonic() - began
    stopping = Stopping(max_seconds, plan.settings.max_bad_steps)
    trainer = build_trainer(
        fitted.module.settings,
        run.folder,
        device=plan.hardware.device,
        precision=plan.hardware.precision,
        callbacks=[*fitted.callbacks, stopping],
        loggers=loggers,
        state=run.state,
    )
    try:
        ending = stopping.fit(trainer, fitted.module, fitted.data)
    finally:
        finish_loggers(loggers)

    checkpoints = _first(fitted.callbacks, RunCheckpoints)
    best = None if checkpoints is None else checkpoints.best
    if ending.reason is None:
        n_steps = trainer.global_step - run.step
        announcer.say_done(trainer, run, n_steps=n_steps, seconds=time.monotonic() - began)
        samples = _first(fitted.callbacks, Samples)
        announcer.say_results(
            fitted.module,
            best=best,
            keeps_best=checkpoints is not None,
            samples=[] if samples is None else samples.texts,
            folder=run.folder,
        )
    else:
        announcer.say_stop(ending, trainer.global_step, run)
    return TrainingResult(
        folder=run.folder,
        steps=trainer.global_step,
        best=best,
        stopped_by=ending.reason,
        exit_code=ending.code,
    )


def finish_loggers(loggers: "Sequence[Logger]") -> None:
    """End what would outlive its run: Weights & Biases gives the next run of a process to the entry of the last."""
    for logger in loggers:
        end = getattr(getattr(logger, "experiment", None), "finish", None)
        if end is not None:
            end()


def make_console(kind: str) -> "Console":
    """The console of a run: auto, lines or quiet; of several processes only the first is heard."""
    from gptmini.training.monitoring.console import LastingConsole
    from gptmini.training.trainer import is_first_process

    return LastingConsole(
        quiet=kind == "quiet" or not is_first_process(),
        force_terminal=False if kind == "lines" else None,
        soft_wrap=True,
        highlight=False,
    )


def open_announcer(console: "Console", run: "Run", plan: Plan) -> Announcer:
    """Who speaks for a run that has begun: to the console, and to its log."""
    from rich.console import Console

    from gptmini.training.monitoring.console import ConsoleLogger, past_validations

    log = Console(file=run.log, soft_wrap=True, highlight=False)
    return Announcer(ConsoleLogger(console, log, plan.settings.max_steps, past_validations(run.curves)))


def stored_yaml(config: "DictConfig") -> str:
    """The configuration as a run keeps it: what it resumes from is no part of it."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.merge(config, {"resume": None}))


def without_resume(overrides: Sequence[str]) -> list[str]:
    """The overrides that say what a run is, not where it goes on."""
    return [override for override in overrides if not override.startswith("resume=")]


def _first(callbacks: Sequence[Any], kind: type) -> Any:
    """The first callback of a kind, or None."""
    return next((callback for callback in callbacks if isinstance(callback, kind)), None)
