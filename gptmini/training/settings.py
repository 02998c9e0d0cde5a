"""The checked settings of a run. All settings are checked before gptmini reads the text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field as dataclass_field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveInt
from pydantic.dataclasses import dataclass

from gptmini.key_table import keys_with
from gptmini.settings import STRICT, FileName, Seed, Time, seconds_of
from gptmini.world import cpu_cores

if TYPE_CHECKING:
    from gptmini.data import Corpus
    from gptmini.hardware import Hardware
    from gptmini.model import ModelSettings
    from gptmini.training import TrainerSettings
    from gptmini.training.trainer import Callback


def _not_latest(name: str) -> str:
    """Return the name of a run. Raise ValueError if the name is 'latest', because 'latest' links to the newest run."""
    if name == "latest":
        raise ValueError(
            "must not be 'latest', because the link runs/latest points to the newest run"
        )
    return name


def _not_empty(place: str) -> str:
    """Return a path. Raise ValueError if the path is empty, because an empty path means the working folder."""
    if not place:
        raise ValueError("must be a non-empty path")
    return place


Place = Annotated[str, AfterValidator(_not_empty)]
MOST_EPOCHS = 1_000_000  # a user who sets more probably means steps or tokens


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RootSettings:
    """The root keys of the configuration. If a key has a neutral value, such as None, this value is its default."""

    seed: Seed  # seed of the initial weights, of the order of batches and of dropout
    name: Annotated[FileName, AfterValidator(_not_latest)] | None = None  # name of the run
    data_dir: Place  # folder of the prepared token files
    num_workers: PositiveInt | Literal["auto"] = "auto"  # threads that tokenize the text
    runs_dir: Place  # folder of all runs
    folder: Place | None = None  # any folder for this run; None for a new folder in runs_dir
    init_from: str | None = None  # a trained model that provides the initial weights
    # Prefixes of the names of weights that are not trained.
    freeze: list[str] | str = dataclass_field(default_factory=list)
    resume: str | None = None  # a run folder to resume, or a .ckpt file in it
    console: Literal["auto", "lines", "quiet"] = "auto"
    # Time for a new run. The time decides the model sizes and the number of steps. None: the configuration decides the
    # model sizes and the number of steps.
    budget: Time | None = None
    # Passes over the training tokens of a new run. None: the configuration decides the number of steps.
    epochs: Annotated[float, Field(gt=0, le=MOST_EPOCHS)] | None = None

    @property
    def n_workers(self) -> int:
        """Number of threads that tokenize the text."""
        return cpu_cores() if self.num_workers == "auto" else self.num_workers

    @property
    def seconds(self) -> float | None:
        """The value of budget in seconds; None if budget is None."""
        return None if self.budget is None else seconds_of(self.budget)

    @property
    def frozen(self) -> list[str]:
        """The prefixes in the setting freeze, as a list."""
        return [self.freeze] if isinstance(self.freeze, str) else self.freeze


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PrepareSettings(RootSettings):
    """The root keys of the configuration of gptmini prepare."""

    verify: bool  # whether to compare every file of a prepared folder with its checksum
    inspect: bool  # whether to print the contents of a prepared folder


@plain_dataclass(frozen=True, kw_only=True)
class TextSettings:
    """The checked parts of a configuration that determine the tokens."""

    root: RootSettings
    tokenizer: Any = None  # builder() returns the function that builds the tokenizer
    text: "Callable[[], Corpus] | None" = None  # function that opens the text
    # The full configuration as plain values.
    plain: Mapping[str, Any] = dataclass_field(default_factory=dict)

    @property
    def stored(self) -> dict[str, Any]:
        """The configuration for config.yaml. The path of the run folder is null, because the folder may be moved."""
        return {**self.plain, **dict.fromkeys(keys_with("unstored"))}


@plain_dataclass(frozen=True, kw_only=True)
class Settings(TextSettings):
    """All checked parts of a configuration that do not need the text."""

    trainer: "TrainerSettings"
    hardware: "Hardware"
    model: "ModelSettings"
    optimizer: Any  # build(model) builds the optimizer
    schedule: Callable[..., float]
    callbacks: "Sequence[Callback]"
    # Console lines about settings that gptmini changed to suit the available devices.
    notes: Sequence[str] = ()
    # Returns a dict that maps names to loggers. A value may also be a partial that still needs arguments of the run.
    make_loggers: Callable[[], Mapping[str, Any]] = dict
