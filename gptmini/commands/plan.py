"""What a run is made of: a configuration, checked and built as far as that goes without the text, then with it."""

import inspect
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gptmini.checks import UserError, text

if TYPE_CHECKING:  # a mistake in a key is told before torch and Lightning are imported, which takes seconds
    import torch
    from omegaconf import DictConfig

    from gptmini.commands.announcements import Announcer
    from gptmini.data import TokenStore
    from gptmini.hardware import Hardware
    from gptmini.model import GPT, GPTConfig
    from gptmini.model.checkpoint import TrainingState
    from gptmini.tokenizer import Tokenizer
    from gptmini.training import GPTModule, TokenDataModule, TrainerSettings
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
class Fitted:
    """What Lightning's Trainer fits."""

    module: "GPTModule"
    data: "TokenDataModule"
    callbacks: "list[Callback]"


def check_configuration(config: "DictConfig") -> Plan:
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
    _check_writable(config)
    check_seed(config.seed)
    check_run_name(config.name)
    for key in ("runs_dir", "data_dir"):
        if "\0" in text(key, config[key]):
            raise UserError(f"{key} must be the name of a folder, got {config[key]!r}")
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
    _try_out(plan, _build(config.tokenizer))
    return plan


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
    from gptmini.training.trainer import assemble, restore_callbacks

    tokenizer = from_dict(store.tokenizer)
    sizes = plan.model(vocab_size=tokenizer.n_vocab)
    callbacks = make_callbacks(plan.callbacks, tokenizer, sizes)
    if state is not None:
        restore_callbacks(callbacks, state)
    module, data = assemble(
        store,
        sizes,
        plan.settings,
        optimizer=plan.optimizer,
        schedule=plan.schedule,
        seed=plan.seed,
        compile=plan.hardware.compile,
        device=plan.hardware.device,
        precision=plan.hardware.precision,
        state=state,
    )
    return Fitted(module=module, data=data, callbacks=callbacks)


def make_callbacks(
    named: "Mapping[str, Callback | partial]", tokenizer: "Tokenizer", sizes: "GPTConfig"
) -> "list[Callback]":
    """The callbacks of a plan; those that wait for the tokenizer are given it.

    Raises UserError: arguments of a stored configuration that do not fit, pictures of what the model has not, or a
    callback whose state no checkpoint may hold.
    """
    from gptmini.training import Pictures
    from gptmini.training.trainer import Callback, check_state_is_plain

    callbacks = []
    for name, callback in named.items():
        if isinstance(callback, partial):
            try:
                callback = callback(tokenizer=tokenizer)
            except TypeError as error:
                raise UserError(f"callbacks.{name} does not fit: {error}") from None
        if not isinstance(callback, Callback):
            raise UserError(f"callbacks.{name} must be a callback of Lightning's kind, got {callback!r}")
        if isinstance(callback, Pictures):
            callback.check(sizes)
        check_state_is_plain(callback)
        callbacks.append(callback)
    return callbacks


def open_loggers(plan: Plan, run: "Run", announcer: "Announcer") -> "list[Logger]":
    """The loggers of a plan; each that waits for the run is given what it takes of its folder, name and first step.

    The name is id for Weights & Biases, where a resumed run goes on in the same entry, and run_name for MLflow.
    """
    name = f"{run.folder.parent.name}-{run.folder.name}"
    allowed = re.sub(r"[^\w.-]", "-", name)  # Weights & Biases refuses some characters in an id
    offered = {
        "save_dir": str(run.folder),
        "purge_step": run.purge_step,
        "on_error": lambda error: announcer.say("events", f"not written: {error.strerror}"),
        "id": allowed,
        "run_name": name,
    }
    return [_connected(logger, offered) for logger in plan.loggers.values()]


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
                raise UserError(f"{group}.{name} does not fit: {cause}") from None
            if isinstance(cause, ImportError):
                raise UserError(f"{group}.{name} names {part._target_}, which cannot be imported: {cause}") from None
            raise
    return built


def _check_writable(config: "DictConfig") -> None:
    """Raise UserError unless a run can keep every text: what is typed may hold bytes that are no character."""
    from omegaconf import OmegaConf

    try:
        json.dumps(OmegaConf.to_container(config), ensure_ascii=False, default=str).encode("utf-8")
    except UnicodeEncodeError as error:
        found = f"U+{ord(error.object[error.start]):04X}"
        raise UserError(f"every value must be Unicode without lone surrogates, got {found}; rename the file") from None


def _try_out(plan: Plan, make_tokenizer: partial) -> None:
    """Raise UserError unless what waits for the text or the run will take it; nothing of what is made here is kept."""
    import torch

    from gptmini.optim import schedules
    from gptmini.training.trainer import Logger

    try:
        plan.model(vocab_size=1)
        plan.optimizer(torch.nn.Linear(1, 1))
        schedules.check(**plan.schedule.keywords)
        inspect.signature(make_tokenizer.func).bind((), (), **make_tokenizer.keywords)  # of two splits' texts
    except TypeError as error:  # of a stored configuration; what is typed was compared with the YAML
        raise UserError(f"the configuration does not fit: {error}") from None

    with tempfile.TemporaryDirectory() as folder:
        for name, logger in plan.loggers.items():
            try:
                connected = _connected(logger, {"save_dir": folder})
            except ImportError as error:
                raise UserError(f"logger.{name} needs a package that is not installed: {error}") from None
            except Exception as error:  # of whatever class: the logger may be anybody's
                raise UserError(f"logger.{name} cannot be made: {error}") from None
            if not isinstance(connected, Logger):
                raise UserError(f"logger.{name} must be a logger of Lightning's kind, got {connected!r}")


def _connected(logger: "Logger | partial", offered: Mapping[str, Any]) -> "Logger":
    """A logger; a partial one is called with those of the offered arguments that it takes and has not yet."""
    if not isinstance(logger, partial):
        return logger

    takes = inspect.signature(logger.func).parameters
    wanted = [name for name in offered if name in takes and name not in logger.keywords]
    return logger(**{name: offered[name] for name in wanted})
