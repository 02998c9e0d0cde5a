"""Shared pydantic settings: the strict configuration, and types that several settings classes use.

A settings class is a frozen pydantic dataclass with STRICT, whose annotations hold types and ranges. The arguments of a
callable, such as a callback's constructor, are checked by pydantic.validate_call with STRICT. An invalid value raises a
pydantic.ValidationError, which a command prints in one line with the value's key.
"""

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from gptmini.user_error import UserError

# Refuse a string for a number, 1 for true, infinity, and unknown keys.
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

LARGEST_FLOAT32 = (
    3.4028234663852886e38  # weights are stored in float32, and this is its largest number
)

# A learning rate, or a factor of a learning rate.
Rate = Annotated[float, Field(ge=0, le=LARGEST_FLOAT32)]
# From 0 to 1, both included.
Fraction = Annotated[float, Field(ge=0, le=1)]
# A decay rate, or a probability below 1.
BelowOne = Annotated[float, Field(ge=0, lt=1)]
# Two decay rates. A list, because YAML has no tuples.
Pair = Annotated[list[BelowOne], Field(min_length=2, max_length=2)]
# A seed that torch's random generators accept.
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]

# Defaults of gptmini sample, gptmini.generate and generate_stream. They are here because --help prints them before
# torch is imported.
SAMPLE_SEED = 1
SAMPLE_TEMPERATURE = 0.8  # below 1, because samples of a small model then make more sense
# Maximum number of new tokens. Many tokenizers do not have an end-of-text token that would end a sample.
SAMPLE_TOKENS = 200
SAMPLE_BATCH_SIZE = 8


def _plain_name(name: str) -> str:
    """Return the name of a file or folder; ValueError for a path."""
    if name in ("", ".", "..") or set(name) & set("/\\\0"):
        raise ValueError("must be a plain name, not a path")
    return name


# The plain name of a file or folder, without a path.
FileName = Annotated[str, AfterValidator(_plain_name)]


def checked(values: object, schema: Any, file: Path | None = None) -> Any:
    """Validate values from a file as a type; UserError, with the file's name, if they are invalid."""
    try:
        return TypeAdapter(schema).validate_python(values, strict=True)
    except ValidationError as error:
        where = "" if file is None else f"{file}: "
        raise UserError(f"{where}{first_error(error)}") from None


def first_error(error: ValidationError) -> str:
    """Describe the first mistake in values from a file, in one line: the value's name and its requirement."""
    first = error.errors(include_url=False)[0]
    reason = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # a rule about several values, which names them itself
        return reason

    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"{name} is missing"
    reason = re.sub(r"^[A-Z][a-z]+ should ", "must ", reason)
    return f"{name}: {reason}, got {first['input']!r:.80}"
