"""Train a GPT: gptmini train [KEY=VALUE ...]; --help lists groups and keys."""

import inspect
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.checks import UserError, text
from gptmini.commands.announcements import Announcer
from gptmini.commands.configuration import compose_checked, run_configured

if TYPE_CHECKING:  # a mistake in a key is told before torch and Lightning are imported, which takes seconds
    import torch
    from omegaconf import DictConfig
    from rich.console import Console

    from gptmini.data import TokenStore
    from gptmini.hardware import Hardware
    from gptmini.model import GPT, GPTConfig
    from gptmini.model.checkpoint import TrainingState
    from gptmini.tokenizer import Tokenizer
    from gptmini.training import GPTModule, TokenDataModule, TrainerSettings
    from gptmini.training.checkpointing import Best
    from gptmini.training.run import Run
    from gptmini.training.trainer import Callback, Logger

CONSOLES = ("auto", "lines", "quiet")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A configuration, checked and built as far as that goes before the text is read."""

    settings: "TrainerSettings"
    max_seconds: float | None  # trainer.max_time
    hardware: "Hardware"
    seed: int
    model: "Callable[..., GPTConfig]"  # waits for vocab_size
    optimizer: "Callable[[GPT], torch.optim.Optimizer]"
    schedule: Callable[..., float]
    callbacks: Mapping[str, "Callback | partial"]  # by name; a partial one waits for the tokenizer
    loggers: Mapping[str, "Logger | partial"]  # by name; a partial one waits for the run's folder


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What a run came to."""

    folder: Path  # of the run
    steps: int  # optimizer steps done in all
    best: "Best | None"  # validation with the lowest loss; None if none was saved
    stopped_by: str | None = None  # a signal's name or the time limit; None if the run came to its end
    exit_code: int = 0  # of the command: 128 + the signal's number, if one stopped the run


def check(config: "DictConfig") -> Plan:
    """Everything of a configuration that can be checked and built before the text is read.

    Raises UserError: a value of the wrong type or out of range.
    """
    from omegaconf import OmegaConf

    from gptmini.hardware import choose_hardware
    from gptmini.model import check_seed
    from gptmini.run_folder import check_run_name
    from gptmini.training.stopping import seconds_of
    from gptmini.training.trainer import quieten_lightning

    quieten_lightning()
    OmegaConf.resolve(config)
    check_seed(config.seed)
    check_run_name(config.name)
    text("runs_dir", config.runs_dir)
    text("data_dir", config.data_dir)
    if config.console not in CONSOLES:
        raise UserError(f"console must be one of {', '.join(CONSOLES)}, got {config.console!r}")

    settings = _build(config.trainer)
    plan = Plan(
        settings=settings,
        max_seconds=seconds_of(settings.max_time),
        hardware=choose_hardware(settings.device, settings.precision, settings.compile, settings.devices),
        seed=config.seed,
        model=_build(config.model),
        optimizer=_build(config.optimizer),
        schedule=_build(config.schedule),
        callbacks=_build_parts(config, "callbacks"),
        loggers=_build_parts(config, "logger"),
    )
    _try_out(plan)
    return plan


def train(config: "DictConfig", overrides: Sequence[str] = ()) -> TrainingResult:
    """Check everything, prepare the tokens, train from the first step or the one reached, and say what came of it.

    overrides are what was typed, KEY=VALUE each, for whoever compares runs.
    """
    began = time.monotonic()
    plan = check(config)
    prepare_process(plan)

    from gptmini.training.run import open_run

    console = make_console(config.console)
    with open_run(config.resume, runs_dir=config.runs_dir, name=config.name) as run:
        with console.status("reading text"):
            store, prepared_now = open_tokens(config, run.state)
        fitted = build(plan, store, run.state)
        run.begin(stored_yaml(config), typed(overrides))

        announcer = open_announcer(console, run, plan)
        loggers = open_loggers(plan, run, announcer)
        describe(loggers, config, fitted.module, run.overrides)
        announcer.begin(run, fitted.module, plan.hardware, prepared_now=prepared_now, runs_dir=config.runs_dir)
        return fit(plan, fitted, run, [*loggers, announcer.console], announcer, began=began)


def train_from_python(overrides: Sequence[str]) -> TrainingResult:
    """Train for overrides as they would be typed; gptmini.train is this function.

    Raises UserError: a mistake, or several devices, whose processes Lightning starts with the caller's command line.
    """
    config = compose_checked("train", list(overrides))
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
    run_configured("train", run_job, arguments=arguments, check=check)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What Lightning's Trainer fits."""

    module: "GPTModule"
    data: "TokenDataModule"
    callbacks: "list[Callback]"


def prepare_process(plan: Plan) -> None:
    """Set what holds for the whole process: the memory that it keeps, and its threads."""
    import torch

    from gptmini.hardware import keep_freed_memory

    keep_freed_memory()
    if plan.settings.threads is not None:
        torch.set_num_threads(plan.settings.threads)


def open_tokens(config: "DictConfig", state: "TrainingState | None") -> "tuple[TokenStore, bool]":
    """The tokens that a run began with, if they are still there, else prepared from the text; and whether they were."""
    from gptmini.data import TokenStore, prepare

    if state is not None and (state.data_folder / "meta.json").is_file():
        return TokenStore(state.data_folder), False
    return prepare(_build(config.data), _build(config.tokenizer), config.data_dir)


def build(plan: Plan, store: "TokenStore", state: "TrainingState | None") -> Fitted:
    """Module, batches and callbacks of a plan on a text.

    Raises UserError: the text is too short, the plan does not fit it, or the state is of another run.
    """
    from gptmini.tokenizer import from_dict
    from gptmini.training import assemble

    tokenizer = from_dict(store.tokenizer)
    sizes = plan.model(vocab_size=tokenizer.n_vocab)
    callbacks = make_callbacks(plan.callbacks, tokenizer, sizes)
    module, data = assemble(
        store,
        sizes,
        plan.settings,
        optimizer=plan.optimizer,
        schedule=plan.schedule,
        seed=plan.seed,
        compile=plan.hardware.compile,
        state=state,
    )
    return Fitted(module=module, data=data, callbacks=callbacks)


def make_callbacks(
    named: "Mapping[str, Callback | partial]", tokenizer: "Tokenizer", sizes: "GPTConfig"
) -> "list[Callback]":
    """The callbacks of a plan; those that wait for the tokenizer are given it.

    Raises UserError: arguments of a stored configuration that do not fit, or pictures of what the model has not.
    """
    from gptmini.training import Pictures

    callbacks = []
    for name, callback in named.items():
        if isinstance(callback, partial):
            try:
                callback = callback(tokenizer=tokenizer)
            except TypeError as error:
                raise UserError(f"callbacks.{name} does not fit: {error}") from None
        if isinstance(callback, Pictures):
            callback.check(sizes)
        callbacks.append(callback)
    return callbacks


def open_loggers(plan: Plan, run: "Run", announcer: Announcer) -> "list[Logger]":
    """The loggers of a plan; each that waits for the run is given what it takes of its folder, name and first step.

    The name is id for Weights & Biases, where a resumed run goes on in the same entry, and run_name for MLflow.
    """
    name = f"{run.folder.parent.name}-{run.folder.name}"
    offered = {
        "save_dir": str(run.folder),
        "purge_step": run.purge_step,
        "on_error": lambda error: announcer.say("events", f"not written: {error.strerror}"),
        "id": name,
        "run_name": name,
    }
    return [_connected(logger, offered) for logger in plan.loggers.values()]


def describe(loggers: "Sequence[Logger]", config: "DictConfig", module: "GPTModule", overrides: Sequence[str]) -> None:
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


def fit(
    plan: Plan, fitted: Fitted, run: "Run", loggers: "Sequence[Logger]", announcer: Announcer, *, began: float
) -> TrainingResult:
    """Train until the last step, or until a signal, the time limit or a callback ends the run; say how it ended."""
    from gptmini.training import RunCheckpoints, Samples, Stopping, build_trainer

    max_seconds = plan.max_seconds
    if max_seconds is not None:
        max_seconds -= time.monotonic() - began
    stopping = Stopping(max_seconds, plan.settings.max_bad_steps)
    trainer = build_trainer(
        plan.settings,
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
        finish(loggers)

    checkpoints = _first(fitted.callbacks, RunCheckpoints)
    best = None if checkpoints is None else checkpoints.best
    if ending.reason is None:
        n_steps = trainer.global_step - run.step
        announcer.done(trainer, run.folder, n_steps=n_steps, seconds=time.monotonic() - began)
        samples = _first(fitted.callbacks, Samples)
        announcer.end(
            fitted.module,
            best=best,
            keeps_best=checkpoints is not None,
            samples=[] if samples is None else samples.texts,
            folder=run.folder,
        )
    else:
        announcer.stop(ending, trainer.global_step, run.folder)
    return TrainingResult(
        folder=run.folder,
        steps=trainer.global_step,
        best=best,
        stopped_by=ending.reason,
        exit_code=ending.code,
    )


def finish(loggers: "Sequence[Logger]") -> None:
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


def typed(overrides: Sequence[str]) -> list[str]:
    """The overrides that say what a run is, not where it goes on."""
    return [override for override in overrides if not override.startswith("resume=")]


def _build(config: "DictConfig") -> Any:
    """What a part of a configuration describes."""
    from hydra.utils import instantiate

    return instantiate(config, _convert_="all")


def _build_parts(config: "DictConfig", group: str) -> dict[str, Any]:
    """What a group of a configuration describes, by name; parts that are null are left out.

    Raises UserError: the group or one of its parts is no part, or what it names cannot be made.
    """
    from hydra.errors import InstantiationException
    from omegaconf import OmegaConf

    parts = config[group]
    if parts is None:
        return {}
    if not OmegaConf.is_dict(parts):
        raise UserError(f"{group} must be null or hold parts by name, got {parts!r}")

    built = {}
    for name, part in parts.items():
        if part is None:
            continue
        if not (OmegaConf.is_dict(part) and "_target_" in part):
            raise UserError(f"{group}.{name} must be null or have its own keys, got {part!r}")
        try:
            built[name] = _build(part)
        except InstantiationException as error:
            cause = error.__cause__
            if isinstance(cause, TypeError):
                raise UserError(f"{group} does not fit: {error}") from None
            if isinstance(cause, ImportError):
                raise UserError(f"{group}.{name} names {part._target_}, which cannot be imported: {cause}") from None
            raise
    return built


def _try_out(plan: Plan) -> None:
    """Raise UserError unless what waits for the text or the run will take it; nothing of what is made here is kept."""
    import torch

    from gptmini.optim import schedules

    try:
        plan.model(vocab_size=1)
        plan.optimizer(torch.nn.Linear(1, 1))
        schedules.check(**plan.schedule.keywords)
    except TypeError as error:  # of a stored configuration; what is typed was compared with the YAML
        raise UserError(f"the configuration does not fit: {error}") from None

    with tempfile.TemporaryDirectory() as folder:
        for name, logger in plan.loggers.items():
            try:
                _connected(logger, {"save_dir": folder})
            except ImportError as error:
                raise UserError(f"logger.{name} needs a package that is not installed: {error}") from None
            except Exception as error:  # of whatever class: the logger may be anybody's
                raise UserError(f"logger.{name} cannot be made: {error}") from None


def _connected(logger: "Logger | partial", offered: Mapping[str, Any]) -> "Logger":
    """A logger; a partial one is called with those of the offered arguments that it takes and has not yet."""
    if not isinstance(logger, partial):
        return logger
    taken = inspect.signature(logger.func).parameters
    return logger(**{name: value for name, value in offered.items() if name in taken and name not in logger.keywords})


def _first(callbacks: Sequence[Any], kind: type) -> Any:
    """The first callback of a kind, or None."""
    return next((callback for callback in callbacks if isinstance(callback, kind)), None)
