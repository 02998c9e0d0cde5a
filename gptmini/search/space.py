"""What a sweep varies: for each key its values, as Optuna draws them and as a command line says them."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gptmini.user_error import UserError

if TYPE_CHECKING:
    from optuna.trial import Trial

# Digits of a number that is drawn from an interval. More of them would change no curve, and make labels unreadable.
DIGITS = 4


@dataclass(frozen=True)
class Dimension:
    """One key of a sweep: either texts that stand for its values, or an interval of numbers."""

    key: str  # as it is typed, perhaps the name of a group
    texts: tuple[str, ...] = ()  # of the values; empty for an interval
    low: float = 0.0  # ends of the interval, which belong to it
    high: float = 0.0
    is_whole: bool = False  # whether the interval is one of whole numbers
    is_log: bool = False  # whether numbers are drawn evenly on a logarithmic scale

    def __post_init__(self) -> None:
        """Raise UserError for a key without values, with a value twice, or with an interval that holds no number."""
        if self.is_interval and not self.low < self.high:
            raise UserError(
                f"the interval of {self.key} must go from a lower to a higher number, got {self.low:g} to {self.high:g}"
            )
        if self.is_interval and self.is_log and self.low <= 0:
            raise UserError(
                f"a logarithmic interval must lie above 0, got {self.low:g} for {self.key}"
            )
        for text in self.texts:
            if self.texts.count(text) > 1:
                raise UserError(f"{self.key} must have each value once, got {text} twice")

    def __str__(self) -> str:
        """The values in one text, which tells this dimension from others."""
        if not self.is_interval:
            return ",".join(self.texts)
        kind = "int" if self.is_whole else "float"
        scale = "log" if self.is_log else "linear"
        return f"{kind} {scale} interval({self.low!r},{self.high!r})"

    @property
    def is_interval(self) -> bool:
        """Whether the values are all numbers of an interval."""
        return not self.texts

    @property
    def examples(self) -> list[str]:
        """Texts that a check can try: every value, or the two ends of an interval."""
        return list(self.texts) or [self.text_of(self.low), self.text_of(self.high)]

    def draw(self, trial: "Trial") -> None:
        """Let a trial of Optuna draw its value, unless it has one.

        Whole numbers at equal distances are told as such, because their order helps a sampler that learns.
        """
        numbers = self._evenly_spaced()
        if self.is_interval and self.is_whole:
            trial.suggest_int(self.key, int(self.low), int(self.high), log=self.is_log)
        elif self.is_interval:
            trial.suggest_float(self.key, self.low, self.high, log=self.is_log)
        elif numbers is not None:
            distance = numbers[1] - numbers[0]
            trial.suggest_int(self.key, numbers[0], numbers[-1], step=distance)
        else:
            trial.suggest_categorical(self.key, self.texts)

    def value_of(self, text: str) -> object:
        """What Optuna calls the value of one of the texts."""
        return text if self._evenly_spaced() is None else int(text)

    def text_of(self, value: object) -> str:
        """A value of Optuna as it is typed after the key, a number of an interval rounded to DIGITS digits."""
        if not self.is_interval or self.is_whole:
            return str(int(value) if isinstance(value, float) else value)
        assert isinstance(value, float | int)
        rounded = float(f"{value:.{DIGITS}g}")
        return repr(min(max(rounded, self.low), self.high))

    def _evenly_spaced(self) -> list[int] | None:
        """The values as rising whole numbers at equal distances; None if they are anything else."""
        if len(self.texts) < 2 or not all(
            text.isascii() and text.isdecimal() for text in self.texts
        ):
            return None
        numbers = [int(text) for text in self.texts]
        distances = {later - earlier for earlier, later in itertools.pairwise(numbers)}
        has_plain_texts = [str(number) for number in numbers] == list(self.texts)
        return numbers if len(distances) == 1 and distances.pop() > 0 and has_plain_texts else None


def points_of_grid(dimensions: Sequence[Dimension]) -> Iterator[dict[str, object]]:
    """Yield every combination of values, by key; that of the last dimension changes fastest."""
    for texts in itertools.product(*(dimension.texts for dimension in dimensions)):
        yield {
            dimension.key: dimension.value_of(text)
            for dimension, text in zip(dimensions, texts, strict=True)
        }
