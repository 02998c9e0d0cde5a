"""The settings of a run, made and checked: all that a run is made of before its text is read."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field as dataclass_field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from gptmini.key_table import keys_with
from gptmini.settings import STRICT, FileName, Seed
from gptmini.world import usable_processors

if TYPE_CHECKING:
    from gptmini.data import Corpus
    from gptmini.hardware import Hardware
    from gptmini.model import ModelSettings
    from gptmini.training import TrainerSettings
    from gptmini.training.trainer import Callback


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


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RootSettings:
    """The keys at the root of the configuration. Those with a neutral value have it as their default."""

    seed: Seed  # of the first weights, the order of batches and dropout
    name: Annotated[FileName, AfterValidator(_not_latest)] | None = None  # of the run
    data_dir: Place  # folder of the prepared token files
    num_workers: PositiveInt | Literal["auto"] = "auto"  # threads that tokenise a text
    runs_dir: Place  # folder of all runs
    folder: Place | None = None  # of this run, wherever it is; None for a new one below runs_dir
    init_from: str | None = None  # a trained model whose weights the run begins with
    # Beginnings of names of weights that training leaves as they are.
    freeze: list[str] | str = dataclass_field(default_factory=list)
    resume: str | None = None  # a run folder, or a .ckpt file in one, to go on with
    console: Literal["auto", "lines", "quiet"] = "auto"
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
    tokenizer: Any = None  # builder() makes the tokenizer of a text
    text: "Callable[[], Corpus] | None" = None  # opens the text
    # The whole configuration as plain values.
    plain: Mapping[str, Any] = dataclass_field(default_factory=dict)

    @property
    def stored(self) -> dict[str, Any]:
        """The configuration as config.yaml stores it: without what says where the folder lies, which may be moved."""
        return {**self.plain, **dict.fromkeys(keys_with("unstored"))}


@plain_dataclass(frozen=True, kw_only=True)
class Settings(TextSettings):
    """Every part of a configuration that needs no text, made and checked."""

    trainer: "TrainerSettings"
    hardware: "Hardware"
    model: "ModelSettings"
    optimizer: Any  # build(model) makes the optimizer
    schedule: Callable[..., float]
    callbacks: "Sequence[Callback]"
    # Lines for the user on what was changed for the devices that are there.
    notes: Sequence[str] = ()
    # Makes the loggers by name, or partials of them that lack what only a run knows.
    make_loggers: Callable[[], Mapping[str, Any]] = dict
