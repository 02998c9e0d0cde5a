"""What a run is made of before its text is read: each part of the configuration, as the class that checks it."""

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from gptmini.commands.keys import known_keys, no_key
from gptmini.settings import STRICT, FileName, Seed
from gptmini.user_error import UserError
from gptmini.world import this_world

# A wrong value is told before torch and Lightning are imported, which takes seconds.
if TYPE_CHECKING:
    from omegaconf import DictConfig

    from gptmini.commands.compose import Typed
    from gptmini.hardware import Hardware
    from gptmini.model import ModelSettings
    from gptmini.runs import Run
    from gptmini.training import TrainerSettings
    from gptmini.training.trainer import Callback, Logger


def _not_latest(name: str) -> str:
    """The name of a run; ValueError for latest, which is the name of the folder of links to the newest run."""
    if name == "latest":
        raise ValueError("must be another name than latest, which leads to the newest run")
    return name


def _is_named(place: str) -> str:
    """A path; ValueError for an empty one, which would stand for the working folder."""
    if not place:
        raise ValueError("must be a file or a folder")
    return place


Place = Annotated[str, AfterValidator(_is_named)]
# A time as 90s, 10m or 1h30m.
Duration = Annotated[str, Field(pattern=r"^([0-9]{1,6}[hms])+$")]
SECONDS_OF = {"h": 3600, "m": 60, "s": 1}


def usable_processors() -> int:
    """Number of processors that this process may use."""
    # Windows and macOS do not tell which ones these are.
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return len(usable) or os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RootSettings:
    """The keys at the root of the configuration."""

    name: Annotated[FileName, AfterValidator(_not_latest)] | None  # of the run
    seed: Seed  # of the first weights, the order of batches and dropout
    data_dir: Place  # folder of the prepared token files
    num_workers: PositiveInt | Literal["auto"]  # threads that tokenise a text
    runs_dir: Place  # folder of all runs
    folder: Place | None  # of this run, wherever it is; None for a new one below runs_dir
    init_from: str | None  # a trained model whose weights the run begins with
    freeze: list[str] | str  # beginnings of names of weights that training leaves as they are
    resume: str | None  # a run folder, or a .ckpt file in one, to go on with
    console: Literal["auto", "lines", "quiet"]
    # Time for a new run, whose sizes and steps are then chosen for it; None for those of the configuration.
    budget: PositiveFloat | Duration | None = None

    @property
    def n_workers(self) -> int:
        """Number of threads that tokenise a text."""
        return usable_processors() if self.num_workers == "auto" else self.num_workers

    @property
    def seconds(self) -> float | None:
        """The budget in seconds; None where there is none."""
        if not isinstance(self.budget, str):
            return self.budget
        parts = re.findall(r"([0-9]+)([hms])", self.budget)
        return float(sum(int(number) * SECONDS_OF[unit] for number, unit in parts))

    @property
    def frozen(self) -> list[str]:
        """The names under freeze, of which there may be one alone."""
        return [self.freeze] if isinstance(self.freeze, str) else self.freeze


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PrepareSettings(RootSettings):
    """The keys at the root of the configuration of gptmini prepare."""

    verify: bool  # whether a prepared folder is read whole and compared with its checksums
    inspect: bool  # whether it is shown what a prepared folder holds


@plain_dataclass(frozen=True, kw_only=True)
class TextSettings:
    """The parts of a configuration that decide which tokens there are, made and checked."""

    root: RootSettings
    tokenizer: Any  # builder() makes the tokenizer of a text


@plain_dataclass(frozen=True, kw_only=True)
class Settings(TextSettings):
    """Every part of a configuration that needs no text, made and checked."""

    trainer: "TrainerSettings"
    hardware: "Hardware"
    model: "ModelSettings"
    optimizer: Any  # build(model) makes the optimizer
    schedule: Callable[..., float]
    callbacks: "Sequence[Callback]"
    notes: Sequence[str]  # lines for the user on what was changed for the devices that are there


def root_settings(config: "DictConfig") -> RootSettings:
    """The keys at the root of a configuration, checked."""
    from omegaconf import OmegaConf

    kind = PrepareSettings if "verify" in config else RootSettings
    names = kind.__dataclass_fields__
    values: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, [*names]))
    return kind(**values)


def text_settings(config: "DictConfig") -> TextSettings:
    """The parts of a configuration that decide which tokens there are; errors as for build_settings."""
    return TextSettings(
        root=root_settings(config),
        tokenizer=build_part(config.tokenizer),
    )


def build_settings(config: "DictConfig") -> Settings:
    """Make every part of a configuration that needs no text. What imports torch comes last, because that takes seconds.

    The text itself is opened by commands.tokens: it may be piped into the command, or downloaded, and of several ranks
    the first alone reads it.

    Raises UserError, or pydantic's and Hydra's errors for a value of the wrong type or out of range.
    """
    root = root_settings(config)
    model = build_part(config.model)
    optimizer = build_part(config.optimizer)
    schedule = build_part(config.schedule)
    tokenizer = build_part(config.tokenizer)
    trainer, notes = _trainer_settings(config)

    from gptmini.hardware import choose_hardware
    from gptmini.training.trainer import quieten_lightning

    quieten_lightning()
    hardware = choose_hardware(
        trainer.device,
        trainer.precision,
        trainer.compile,
        trainer.devices_here,
    )
    _check_names(model, root.frozen)
    callbacks = _callbacks(config.callbacks, model)
    return Settings(
        root=root,
        trainer=trainer,
        hardware=hardware,
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        tokenizer=tokenizer,
        callbacks=callbacks,
        notes=notes,
    )


def build_part(part: "DictConfig", **arguments: object) -> Any:
    """The object that a part of a configuration describes, given further arguments.

    Raises UserError: the part names no class.
    """
    from hydra.utils import instantiate

    made = instantiate(part, _convert_="all", **arguments)
    if made is None or isinstance(made, dict | list):
        key = getattr(part, "_get_full_key", str)(None)
        raise UserError(
            f"{key} must name its class under _target_, or begin from an option that does; got {made!r}"
        )
    return made


def _trainer_settings(config: "DictConfig") -> "tuple[TrainerSettings, list[str]]":
    """The settings of the trainer for the devices that this command was given, and lines for the user.

    A resumed run may have other devices than before. If its batch_size does not divide their share of the global batch
    evenly, the largest number below it that does is taken.
    """
    from gptmini.training.trainer_settings import divisors, share_of

    world = this_world()
    wanted = config.trainer.get("batch_size")
    if config.resume is None or type(wanted) is not int or wanted < 1:
        return build_part(config.trainer).placed(world), []

    placed = build_part(config.trainer, batch_size="auto").placed(world)
    share = share_of(placed.global_batch_size, placed.n_ranks)
    fitting = next(size for size in divisors(share) if size <= wanted)
    notes = []
    if fitting != wanted:
        notes.append(
            f"trainer.batch_size={wanted} does not divide the {share} sequences of each of {placed.n_ranks} devices "
            f"evenly; it is {fitting} from here on"
        )
    return replace(placed, batch_size=fitting), notes


def _check_names(model: "ModelSettings", frozen: Sequence[str]) -> None:
    """Raise UserError for beginnings of names that no weight of a model has."""
    if not frozen:
        return

    from gptmini.model.adapting import freeze
    from gptmini.model.gpt import gpt_of_shapes

    freeze(gpt_of_shapes(model.with_vocab_size(1)), frozen)


def _callbacks(parts: "DictConfig", model: "ModelSettings") -> "list[Callback]":
    """The callbacks of a configuration; UserError for a part that is none, or pictures that do not fit the model."""
    from gptmini.training import Pictures, Samples
    from gptmini.training.trainer import check_callback

    callbacks = []
    for name, made in _made(parts, "callbacks").items():
        callback = check_callback(name, made)
        if isinstance(callback, Pictures):
            callback.check(model)
        if isinstance(callback, Samples):
            callback.key = f"callbacks.{name}"
        callbacks.append(callback)
    return callbacks


def build_loggers(parts: "DictConfig", run: "Run") -> "list[Logger]":
    """The logger of metrics.jsonl, which every run has, and those of a configuration.

    A partial is called with those values of the run that its parameters name.

    Weights & Biases takes an id, under which a resumed run continues the entry that it began, and MLflow a run_name.
    """
    from gptmini.training import MetricsLogger
    from gptmini.training.trainer import Logger

    offered = {
        "save_dir": str(run.folder),
        "id": run.identity.id,
        "run_name": f"{run.folder.parent.name}-{run.folder.name}",
    }
    loggers: list[Logger] = [MetricsLogger(run.folder)]
    for key, part in _made(parts, "logger").items():
        logger = part
        if isinstance(part, partial):
            parameters = inspect.signature(part.func).parameters
            known = {
                name: value
                for name, value in offered.items()
                if name in parameters and name not in part.keywords
            }
            # A logger may be anybody's code, and can raise an error of any class.
            try:
                logger = part(**known)
            except Exception as error:
                raise UserError(f"logger.{key} cannot be made: {error}") from None
        if not isinstance(logger, Logger):
            raise UserError(f"logger.{key} must be a logger of Lightning's kind, got {logger!r}")
        loggers.append(logger)
    return loggers


def _made(parts: "DictConfig", group: str) -> Mapping[str, Any]:
    """The objects that a group of parts describes, by name; parts that are null are left out."""
    from omegaconf import OmegaConf

    if parts is None:
        return {}
    if not OmegaConf.is_dict(parts):
        raise UserError(f"{group} must be null or hold parts by name, got {parts!r}")
    made = {}
    for name, part in parts.items():
        if part is None:
            continue
        key = f"{group}.{name}"
        if key in known_keys() and not OmegaConf.is_dict(part):
            raise UserError(
                f"{key} must be null, which leaves it out, or have keys of its own, got {part!r}"
            )
        if not OmegaConf.is_dict(part) or "_target_" not in part:
            raise UserError(
                f"{no_key(key)}; a part of your own must name its class under _target_, got {part!r}"
            )
        made[str(name)] = build_part(part)
    return made


def run_name(config: "DictConfig", typed: "Typed") -> str:
    """The name of a run that was given none: its experiment, else its text."""
    experiment = typed.choices.get("experiment")
    if experiment is not None:
        return experiment.replace("/", "-")

    data = config.data
    path = data.get("path")
    if isinstance(data.get("dataset"), str):
        return data.dataset.rstrip("/").rpartition("/")[2]
    is_file = isinstance(path, str) and Path(path).expanduser().is_file()
    if typed.choices["data"] == "text" and is_file:
        return Path(path).name.partition(".")[0] or "text"
    return typed.choices["data"] or "text"
