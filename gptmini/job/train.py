"""Train a run from its checked settings to its end.

The steps are: build the callbacks, launch the ranks, open the run's folder, prepare the tokens, build the model, the
batches and the trainer, train the model, and return the result. This file imports torch.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from gptmini.checkpoint import TrainingState, read_checkpoint
from gptmini.configuration.building import as_yaml, build_settings
from gptmini.configuration.init_from import fit_context
from gptmini.configuration.messages import advising_on_memory
from gptmini.configuration.request import UserRequest
from gptmini.console.printing import print_topic, sampling_command
from gptmini.console.progress import Watcher
from gptmini.console.terminal import Screen, make_console, show_progress
from gptmini.data import TokenStore
from gptmini.job.announcer import Announcer
from gptmini.job.budget import BudgetChooser
from gptmini.job.callbacks import build_callbacks
from gptmini.job.launch import start_ranks
from gptmini.job.loggers import build_loggers, finish, log_setup
from gptmini.job.recipe import with_recipe
from gptmini.job.result import (
    TrainingResult,
    checkpoints_of,
    final_status,
    recording_failure,
    result_of,
)
from gptmini.job.tokens import open_tokens
from gptmini.runs import Run, open_run, write_status
from gptmini.system.hardware import keep_freed_memory, use_threads
from gptmini.system.process import mute, restore_gc_and_sigint
from gptmini.tokenizer import from_dict
from gptmini.training import (
    BadSteps,
    Callback,
    ConsoleLogger,
    GPTModule,
    Logger,
    Ranks,
    RunLogger,
    Settings,
    Stopping,
    StopReason,
    TokenDataModule,
    Trainer,
    assemble,
    build_trainer,
    hardware_of,
    requeue,
    restore_callbacks,
)


@advising_on_memory("lower trainer.batch_size or the model's sizes")
def train(ranks: Ranks, settings: Settings, request: UserRequest) -> TrainingResult | None:
    """Train a new run, or resume a run, as its settings say. The first rank calls this function.

    If several devices are requested and no launcher has started their ranks, launch the ranks here and return None.
    Otherwise return the result.

    Raises UserError if the text cannot be read or the run cannot be resumed. A wrong callback raises an error of
    pydantic or Hydra, which configuration.messages formats as one line. Raises RanksFailed if a launched rank fails.
    """
    callbacks = build_callbacks(settings)
    restore_gc_and_sigint()
    root = settings.root
    if settings.trainer.n_ranks > ranks.world.size:
        start_ranks(settings.trainer, root.folder, request)
        return None

    prepare_process(settings)
    with open_run(root.resume, root.folder, runs_dir=root.runs_dir, name=root.name) as run:
        # A run that a callback ended continues with resume=, but not with folder=.
        if run.is_complete(settings.trainer.max_steps, resume_given=root.folder is None):
            ranks.broadcast(None)
            return _print_complete(run, settings, callbacks)
        return _train(ranks, run, settings, request, callbacks)


def _train(
    ranks: Ranks,
    run: Run,
    settings: Settings,
    request: UserRequest,
    callbacks: Sequence[Callback],
) -> TrainingResult:
    loggers = build_loggers(settings, run)
    console = make_console(settings.root.console)
    with show_progress(console, topic="data") as watcher:
        settings, store, prepared_now, chosen = open_run_tokens(
            settings, request, run.state, watcher
        )
    module, data = assemble(settings, store, run.state, callbacks)

    # Store what was found for the devices. The other ranks use it, and a resumed run does not search again.
    found = {name: getattr(module.settings, name) for name in ("batch_size", "compile")}
    trainer_keys = settings.plain["trainer"] | found
    settings = replace(settings, plain={**settings.plain, "trainer": trainer_keys})
    for logger in loggers:
        if not isinstance(logger, RunLogger):
            # Start the logger. It may require a login, and a run that cannot start must not appear in the table.
            getattr(logger, "experiment", None)
    run.begin(as_yaml(settings.stored), request.in_all_starts())
    with recording_failure(run, module, began=request.began):
        ranks.broadcast(
            {
                "config": dict(settings.plain),
                "folder": str(run.folder.absolute()),
                "tokens": str(store.folder.absolute()),
                "checkpoint": None if run.state is None else str(run.state.path.absolute()),
                "resumed": run.resumed,
            }
        )

        console_logger = ConsoleLogger(Screen(console, run.log), settings.trainer, run.lines)
        announcer = Announcer(console_logger, request, loggers)
        announcer.print_topic("auto" if settings.root.budget is None else "budget", *chosen)
        log_setup(loggers, settings, module, run)
        announcer.print_start(run, module, settings, prepared_now=prepared_now)
        loggers = [*loggers, console_logger]
        trainer, reason = fit(ranks, module, data, run, callbacks, loggers, began=request.began)
    seconds = time.monotonic() - request.began
    announcer.print_end(trainer, reason, module, run, seconds=seconds)
    if reason.between_steps and settings.trainer.requeue:
        announcer.print_topic("requeue", requeue(reason.stopped_by))
    reason.call_original_handler()
    return result_of(trainer, reason, run)


def open_run_tokens(
    settings: Settings,
    request: UserRequest,
    state: TrainingState | None,
    watcher: Watcher,
) -> tuple[Settings, TokenStore, bool, Sequence[str]]:
    """Open or prepare the tokens of a run. For a new run, apply budget= and epochs=, and fit the context of init_from=.

    Return the settings of the run, its tokens, whether this call prepared them, and lines about the chosen values.
    """
    if settings.root.budget is not None and settings.root.resume is None:
        return BudgetChooser(settings, request, watcher).choose()
    auto = settings.auto_keys
    settings, store, prepared_now = open_tokens(settings, request, state, watcher=watcher)
    settings = fit_context(settings, request, store, watcher)
    settings, lines = with_recipe(settings, store, auto)
    return settings, store, prepared_now, lines


@advising_on_memory("lower trainer.batch_size or the model's sizes")
def train_as_follower(ranks: Ranks, request: UserRequest) -> TrainingResult | None:
    """Train as any rank except the first, which broadcasts the plan and prints all messages.

    Return None if nothing was left to train. Raises UserError if a file that the plan names is missing on this machine.
    """
    plan = ranks.receive()
    mute(False)
    if plan is None:
        return None
    settings = build_settings(plan["config"])
    callbacks = build_callbacks(settings)
    restore_gc_and_sigint()
    prepare_process(settings)

    state = None
    if plan["checkpoint"] is not None:
        path = Path(plan["checkpoint"])
        state = TrainingState.parse(read_checkpoint(path, is_checked=True), path)
    run = Run(Path(plan["folder"]), None, resumed=plan["resumed"], state=state)
    module, data = assemble(settings, TokenStore(Path(plan["tokens"])), state, callbacks)
    loggers = build_loggers(settings, run)
    trainer, reason = fit(ranks, module, data, run, callbacks, loggers, began=request.began)
    return result_of(trainer, reason, run)


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
    progress = [logger.step_callback() for logger in loggers if isinstance(logger, ConsoleLogger)]
    seconds_left = settings.max_seconds
    if seconds_left is not None:
        seconds_left -= time.monotonic() - began
    stopping = Stopping(seconds_left)
    bad_steps = BadSteps(settings.max_bad_steps)
    trainer = build_trainer(
        module,
        run.folder,
        callbacks=[*callbacks, bad_steps, stopping, *progress],
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


def prepare_process(settings: Settings) -> None:
    """Set up the process: keep freed memory for reuse, allow TF32, set the number of threads, drop compiled code."""
    hardware = hardware_of(settings)
    keep_freed_memory()
    if hardware.tf32:
        torch.set_float32_matmul_precision("high")  # norms and sums stay in float32
    use_threads(settings.trainer.threads, n_processes=settings.trainer.devices_here)
    if hardware.compile:
        # torch keeps at most eight compiled graphs of a function. Drop the graphs of earlier runs in this process. Do
        # not drop them later, because the model that budget= measures and the model of the run share their code.
        torch.compiler.reset()


def _print_complete(run: Run, settings: Settings, callbacks: Sequence[Callback]) -> TrainingResult:
    assert run.state is not None
    restore_callbacks(callbacks, run.state)
    checkpoints = checkpoints_of(callbacks)
    if settings.root.console != "quiet":
        if run.end is None or run.end.by is None:
            ended = f"is complete at step {run.step}; to continue, raise trainer.max_steps"
        else:
            ended = f"was ended by {run.end.by} at step {run.step}; to continue, use resume="
        print_topic("done", f"{run.folder} {ended}")
        template = from_dict(run.state.tokenizer).chat_template
        print_topic("next", sampling_command(run.folder, template))
    best = None if checkpoints is None else checkpoints.best
    return TrainingResult(folder=run.folder, steps=run.step, best=best)
