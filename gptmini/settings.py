"""Define the strict configuration of pydantic, and the types that several settings classes use.

A settings class is a frozen dataclass of pydantic with the configuration STRICT. The annotations of its fields are
types and ranges. The arguments of a callable, such as a callback's constructor, are checked by pydantic.validate_call
with STRICT. An invalid value raises a pydantic.ValidationError. A command prints this error in one line with the key of
the value.
"""

import math
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from gptmini.system.errors import UserError

# Refuse a string in place of a number, 1 in place of true, infinite numbers, and unknown keys.
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

LARGEST_FLOAT32 = 3.4028234663852886e38  # weights are stored in float32

# A learning rate, or a factor of a learning rate.
Rate = Annotated[float, Field(ge=0, le=LARGEST_FLOAT32)]
# A number from 0 to 1. 0 and 1 are allowed.
Fraction = Annotated[float, Field(ge=0, le=1)]
# A decay rate, or a probability below 1.
BelowOne = Annotated[float, Field(ge=0, lt=1)]
# Two decay rates. The type is a list, because YAML does not have tuples.
Pair = Annotated[list[BelowOne], Field(min_length=2, max_length=2)]
# A seed that torch's random generators accept.
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]

# Times such as 90s, 10m, 1h30m or 2d, and clocks [[DD:]HH:]MM:SS. Each has at most one number per unit.
TIME = re.compile(r"(?=\d)(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?")
CLOCK = re.compile(r"(?:(?:(\d{1,6}):)?(\d{1,6}):)?(\d{1,6}):(\d{1,6})")
SECONDS_OF_UNITS = (86400, 3600, 60, 1)  # seconds of a day, an hour, a minute and a second


def seconds_of(time: float | str) -> float:
    """Return a time in seconds. Raise ValueError unless it is a positive number, a TIME or a CLOCK."""
    seconds = 0.0
    if isinstance(time, str):
        match = TIME.fullmatch(time) or CLOCK.fullmatch(time)
        if match is not None:
            numbers = map(int, match.groups(default="0"))
            seconds += sum(n * unit for n, unit in zip(numbers, SECONDS_OF_UNITS, strict=True))
    elif type(time) in (int, float):
        seconds = time

    if not 0 < seconds < math.inf:
        raise ValueError("must be a positive time such as 90, 90s, 10m, 1h30m or 1:30:00")
    return seconds


def _checked_time(time: Any) -> Any:
    seconds_of(time)
    return time


# A time as a number of seconds, or as a text that seconds_of reads.
Time = Annotated[float | str, BeforeValidator(_checked_time)]

# Defaults of gptmini sample, gptmini.generate and generate_stream. They are in this module because --help prints
# them before torch is imported.
SAMPLE_SEED = 1
SAMPLE_TEMPERATURE = 0.8  # with a value below 1, the samples of a small model make more sense
# Maximum number of new tokens. Many tokenizers do not have an end-of-text token that would end a sample.
SAMPLE_TOKENS = 200
CHAT_TOKENS = 512  # maximum number of tokens of an answer in chat and serve
SAMPLE_BATCH_SIZE = 8


def _plain_name(name: str) -> str:
    if name in ("", ".", "..") or set(name) & set("/\\\0"):
        raise ValueError("must be a plain name, not a path")
    return name


# The name of a file or folder. A path is not allowed.
FileName = Annotated[str, AfterValidator(_plain_name)]


def checked(values: object, schema: Any, file: Path | None = None) -> Any:
    """Check that values from a file have a type. Raise UserError with the name of the file if a value is invalid."""
    try:
        return TypeAdapter(schema).validate_python(values, strict=True)
    except ValidationError as error:
        where = "" if file is None else f"{file}: "
        raise UserError(f"{where}{first_error(error)}") from None


def first_error(error: ValidationError) -> str:
    """Return one line about the first mistake in values from a file: the name of the value and what it must be."""
    first = error.errors(include_url=False)[0]
    reason = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # a rule about several values; its message names these values
        return reason

    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"{name} is missing"
    reason = re.sub(r"^[A-Z][a-z]+ should ", "must ", reason)
    return f"{name}: {reason}, got {first['input']!r:.80}"
