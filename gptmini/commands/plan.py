"""What a run is made of: a configuration, checked and built as far as possible without the text, then with the text."""

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gptmini.checks import UserError, shown, text
from gptmini.commands.parts import build_from, build_parts, connected
from gptmini.launch import this_launch
from gptmini.processors import n_processors

# A mistake in a key is told before torch and Lightning are imported, which takes seconds.
if TYPE_CHECKING:
    import torch
    from omegaconf import DictConfig

    from gptmini.commands.announcements import Announcer
    from gptmini.data import TokenStore
    from gptmini.hardware import Hardware
    from gptmini.model import GPT, GPTConfig, ModelSettings
    from gptmini.model.training_state import TrainingState
    from gptmini.training import GPTModule, TokenDataModule, TrainerSettings
    from gptmini.training.run import Run
    from gptmini.training.trainer import Callback, Logger

CONSOLES = ("auto", "lines", "quiet")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A configuration, checked and built as far as possible before the text is read."""

    notes: Sequence[str]  # lines for the user on what was changed for the devices that are there
    settings: "TrainerSettings"
    max_seconds: float | None  # the limit trainer.max_time in seconds; None for no limit
    hardware: "Hardware"
    seed: int
    freeze: Sequence[str]  # beginnings of names of weights that training leaves as they are
    model: "ModelSettings"
    optimizer: "Callable[[torch.nn.Module], torch.optim.Optimizer]"
    schedule: "Callable[..., float]"
    callbacks: Mapping[str, "Callback"]  # by name
    loggers: Mapping[str, "Logger | partial"]  # by name; a partial waits for the run's folder


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A plan built for a text: the arguments of Lightning's Trainer.fit, and the callbacks."""

    module: "GPTModule"
    data: "TokenDataModule"
    callbacks: "list[Callback]"


def check_configuration(config: "DictConfig") -> Plan:
    """Check a configuration, and build all that can be built before the text is read.

    Raises UserError: a value of the wrong type or out of range, or a part that cannot be made.
    """
    from omegaconf import OmegaConf

    from gptmini.hardware import choose_hardware
    from gptmini.model import check_seed
    from gptmini.run_folder import check_run_name
    from gptmini.training.trainer import quieten_lightning

    quieten_lightning()
    OmegaConf.resolve(config)
    _check_writable(config)
    check_seed(config.seed)
    workers_of(config)
    check_run_name(config.name)
    for key in ("runs_dir", "data_dir"):
        # No system has a file name with this character, and Python's own error for it would look like a bug.
        if "\0" in text(key, config[key]):
            raise UserError(f"{key} must be the name of a folder, got {config[key]!r}")
    if config.console not in CONSOLES:
        raise UserError(f"console must be one of {', '.join(CONSOLES)}, got {config.console!r}")

    settings, notes = _settings_of(config)
    hardware = choose_hardware(
        settings.device,
        settings.precision,
        settings.compile,
        settings.devices_here,
    )
    plan = Plan(
        notes=notes,
        settings=settings,
        max_seconds=settings.max_seconds,
        hardware=hardware,
        seed=config.seed,
        freeze=_prefixes_of(config),
        model=build_from(config.model),
        optimizer=build_from(config.optimizer).build,
        schedule=build_from(config.schedule),
        callbacks=build_parts(config, "callbacks"),
        loggers=build_parts(config, "logger"),
    )

    # Some parts wait for the text or the run. Their arguments are tried out now, before minutes go into reading text.
    _try_out_partials(plan)
    build_from(config.tokenizer)
    _try_out_loggers(plan.loggers)
    return plan


def _settings_of(config: "DictConfig") -> "tuple[TrainerSettings, list[str]]":
    """The settings of the trainer for the devices that this command was given, and lines for the user.

    A resumed run may have other devices than before. If its batch_size does not divide their share of the global batch
    evenly, the largest number below it that does is taken, and written into the configuration.
    Raises UserError: a value of the wrong type or out of range.
    """
    from gptmini.training.settings import divisors, share_of

    launch = this_launch()
    if config.resume is None:
        return build_from(config.trainer).placed(launch), []

    any_size = config.trainer.copy()
    any_size.batch_size = "auto"
    placed = build_from(any_size).placed(launch)
    share = share_of(placed.global_batch_size, placed.n_ranks)
    wanted = config.trainer.batch_size
    notes = []
    if type(wanted) is int and wanted > 0 and share % wanted:
        fitting = next(size for size in divisors(share) if size < wanted)
        notes.append(
            f"trainer.batch_size={wanted} does not divide the {share} sequences of each of {placed.n_ranks} devices "
            f"evenly; it is {fitting} from here on"
        )
        config.trainer.batch_size = fitting
    return build_from(config.trainer).placed(launch), notes


def check_text(config: "DictConfig") -> None:
    """Check what text is to be tokenised, and with what tokenizer, before the text is read.

    A published text is downloaded if it is not there.
    Raises UserError: a value of the wrong type or out of range, a text that is not there, or another text than the
    published one.
    """
    from omegaconf import OmegaConf

    OmegaConf.resolve(config)
    workers_of(config)
    build_from(config.data)
    build_from(config.tokenizer)


def workers_of(config: "DictConfig") -> int:
    """The number of threads that tokenise a text; UserError unless it is auto or a whole number of at least 1."""
    wanted = config.get("num_workers", "auto")  # a run of an earlier version has no such key
    if wanted == "auto":
        return n_processors()
    if type(wanted) is not int or wanted < 1:
        raise UserError(
            f"num_workers must be a whole number of at least 1, or auto, got {shown(wanted)}"
        )
    return wanted


def _prefixes_of(config: "DictConfig") -> list[str]:
    """The names under freeze, of which there may be one alone; UserError for anything else than names."""
    wanted = config.get("freeze")  # a run of an earlier version has no such key
    if wanted is None:
        return []
    if type(wanted) is str:
        return [wanted]
    names = list(wanted) if isinstance(wanted, Sequence) else [wanted]
    for name in names:
        if type(name) is not str:
            raise UserError(f"freeze must hold names of weights, got {shown(name)}")
    return names


def build(
    plan: Plan,
    store: "TokenStore",
    state: "TrainingState | None",
    *,
    initial: "GPT | None" = None,
    origin: dict[str, str] | None = None,
) -> Fitted:
    """Build the module, the batches and the callbacks of a plan for a text.

    Args:
        plan: a checked configuration.
        store: the tokens of the text.
        state: the state that a resumed run goes on from; None for a run that starts at its first step.
        initial: the trained model that a run without a state begins with; None for new weights.
        origin: path and digest of the weights that the run began with; None for new weights.

    Raises UserError: the text is too short, the plan does not fit the text, or the state is that of another run.
    """
    from gptmini.tokenizer import from_dict
    from gptmini.training.trainer import assemble, check_callback, restore_callbacks

    tokenizer = from_dict(store.tokenizer_state)
    store.check_vocabulary(tokenizer.n_vocab)
    sizes = plan.model.with_vocab_size(tokenizer.n_vocab)
    callbacks = [check_callback(name, callback) for name, callback in plan.callbacks.items()]
    # A run without a step done begins again, with callbacks that have seen nothing.
    if state is not None and state.step > 0:
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
        initial=initial,
        origin=origin,
        freeze=plan.freeze,
    )
    return Fitted(module=module, data=data, callbacks=callbacks)


def open_loggers(plan: Plan, run: "Run", announcer: "Announcer") -> "list[Logger]":
    """Make the loggers of a plan; a partial is called with those values of the run that its parameters name.

    The run's name is offered under two parameters: Weights & Biases takes an id, under which a resumed run goes on in
    the entry that it began, and MLflow takes a run_name.
    """
    name = f"{run.folder.parent.name}-{run.folder.name}"
    offered = {
        "save_dir": str(run.folder),
        "purge_step": run.purge_step,
        "on_error": lambda error: announcer.say("events", f"not written: {error.strerror}"),
        "on_failure": lambda reason: announcer.say("metrics", f"not written: {reason}"),
        "id": re.sub(r"[^\w.-]", "-", name),  # Weights & Biases refuses other characters in an id
        "run_name": name,
    }
    return [connected(logger, offered) for logger in plan.loggers.values()]


def _check_writable(config: "DictConfig") -> None:
    """Raise UserError unless every text can be written as UTF-8, as the run folder keeps it.

    Bytes of the command line that are no character, as in some file names, reach Python as lone surrogates.
    """
    from omegaconf import OmegaConf

    try:
        json.dumps(OmegaConf.to_container(config), ensure_ascii=False, default=str).encode("utf-8")
    except UnicodeEncodeError as error:
        found = f"U+{ord(error.object[error.start]):04X}"
        raise UserError(
            f"every value must be Unicode without lone surrogates, got {found}; rename the file"
        ) from None


def _try_out_partials(plan: Plan) -> None:
    """Raise UserError unless the weights to freeze are there."""
    from gptmini.model.adapting import freeze
    from gptmini.model.checkpoint import gpt_of_shapes

    freeze(gpt_of_shapes(plan.model.with_vocab_size(1)), plan.freeze)


def _try_out_loggers(loggers: "Mapping[str, Logger | partial]") -> None:
    """Raise UserError unless each logger can be made; each is made in a folder that is deleted, and is not used."""
    from gptmini.training.trainer import Logger

    with tempfile.TemporaryDirectory() as folder:
        for name, logger in loggers.items():
            # A logger may be anybody's code, and can raise an error of any class.
            try:
                made = connected(logger, {"save_dir": folder})
            except ImportError as error:
                raise UserError(
                    f"logger.{name} needs a package that is not installed: {error}"
                ) from None
            except Exception as error:
                raise UserError(f"logger.{name} cannot be made: {error}") from None

            if not isinstance(made, Logger):
                raise UserError(f"logger.{name} must be a logger of Lightning's kind, got {made!r}")
