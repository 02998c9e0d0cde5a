"""The checked settings of a run. All settings are checked before gptmini reads the text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field as dataclass_field
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field, PositiveInt
from pydantic.dataclasses import dataclass

from gptmini.key_table import keys_with
from gptmini.model import ModelSettings
from gptmini.settings import STRICT, FileName, Seed, Time
from gptmini.system.world import cpu_cores
from gptmini.training.recipe import one_pass_values
from gptmini.training.trainer_settings import TrainerSettings


def _not_latest(name: str) -> str:
    if name == "latest":
        raise ValueError(
            "must not be 'latest', because the link runs/latest points to the newest run"
        )
    return name


def _not_empty(place: str) -> str:
    # An empty path would mean the working folder. Field(min_length=1) would refuse a path that is not UTF-8.
    if not place:
        raise ValueError("must be a non-empty path")
    return place


Place = Annotated[str, AfterValidator(_not_empty)]
MOST_EPOCHS = 1_000_000  # a user who sets more probably means steps or tokens


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RootSettings:
    """The root keys of the configuration. configs/train.yaml describes each field. A default is a neutral value."""

    seed: Seed
    name: Annotated[FileName, AfterValidator(_not_latest)] | None = None
    data_dir: Place
    num_workers: PositiveInt | Literal["auto"] = "auto"
    runs_dir: Place
    folder: Place | None = None
    init_from: str | None = None
    freeze: list[str] | str = dataclass_field(default_factory=list)
    resume: str | None = None
    console: Literal["auto", "lines", "quiet"] = "auto"
    budget: Time | None = None
    epochs: Annotated[float, Field(gt=0, le=MOST_EPOCHS)] | None = None

    @property
    def n_workers(self) -> int:
        """Number of threads that tokenize the text."""
        return cpu_cores() if self.num_workers == "auto" else self.num_workers

    @property
    def frozen_prefixes(self) -> list[str]:
        """The value of freeze as a list."""
        return [self.freeze] if isinstance(self.freeze, str) else self.freeze


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PrepareSettings(RootSettings):
    """The root keys of the configuration of gptmini prepare."""

    verify: bool  # whether to compare every file of a prepared folder with its checksum
    inspect: bool  # whether to print the contents of a prepared folder


class Component(NamedTuple):
    """A part of a configuration that is built later, because this imports torch or reads the text."""

    key: str  # such as callbacks.samples
    values: Mapping[str, Any]  # the name of the class under _target_, and its arguments


@plain_dataclass(frozen=True, kw_only=True)
class TextSettings:
    """The checked parts of a configuration that determine the tokens."""

    root: RootSettings
    tokenizer: Any  # builder() returns the function that builds the tokenizer
    corpus: Component
    # The full configuration as plain values.
    plain: Mapping[str, Any] = dataclass_field(default_factory=dict)

    @property
    def auto_keys(self) -> frozenset[str]:
        """The keys that are still auto. Until they get values, the settings hold the values for one pass."""
        return frozenset(
            f"{group}.{name}"
            for group, part in self.plain.items()
            if isinstance(part, Mapping)
            for name in one_pass_values(part)
        )

    @property
    def stored(self) -> dict[str, Any]:
        """The configuration for config.yaml. The path of the run folder is null, because the folder may be moved."""
        return {**self.plain, **dict.fromkeys(keys_with("unstored"))}


@plain_dataclass(frozen=True, kw_only=True)
class Settings(TextSettings):
    """All parts of a configuration. Those that need neither torch nor the text are built and checked."""

    trainer: TrainerSettings
    model: ModelSettings
    optimizer: Any  # build(model) builds the optimizer
    schedule: Callable[..., float]
    callbacks: Sequence[Component] = ()
    loggers: Sequence[Component] = ()
    # Console lines about settings that gptmini changed to suit the available devices.
    notes: Sequence[str] = ()
