"""What the classes behind the configuration share: how pydantic checks them, and the types that several of them use.

A class of settings is a frozen dataclass of pydantic with STRICT, whose annotations hold types and ranges. A callable,
as a callback's constructor, is checked by pydantic.validate_call with STRICT. A value that does not fit is a
pydantic.ValidationError, which a command tells in one line with the value's key.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from gptmini.user_error import UserError

# No text for a number, no 1 for true, no infinity, and no key that the class does not have.
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

LARGEST_FLOAT32 = 3.4028234663852886e38  # weights are kept in float32, which holds no larger number

# A learning rate, or a factor on one.
Rate = Annotated[float, Field(ge=0, le=LARGEST_FLOAT32)]
# A share of a whole, both ends included.
Fraction = Annotated[float, Field(ge=0, le=1)]
# A decay rate, or a probability that is never certain.
BelowOne = Annotated[float, Field(ge=0, lt=1)]
# Two decay rates. YAML has lists and no tuples.
Pair = Annotated[list[BelowOne], Field(min_length=2, max_length=2)]
# What a random generator of torch takes.
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]

# Defaults of gptmini sample, and of gptmini.generate and generate_stream. They stand here because the command shows
# them in its help before torch is imported.
SAMPLE_SEED = 1
SAMPLE_TEMPERATURE = 0.8  # below 1: samples of a small model make more sense
SAMPLE_TOKENS = 200  # most new tokens; many tokenizers have no end-of-text that would end a sample
SAMPLE_BATCH_SIZE = 8


def _plain_name(name: str) -> str:
    """Return the name of a file or folder; ValueError for a path."""
    if name in ("", ".", "..") or set(name) & set("/\\\0"):
        raise ValueError("must be a plain file name, without a path")
    return name


# The plain name of a file or folder, without a path.
FileName = Annotated[str, AfterValidator(_plain_name)]


def checked(values: object, schema: Any, file: Path | None = None) -> Any:
    """Values of a file, as pydantic makes them for a type; UserError, with the file's name, if they do not fit it."""
    try:
        return TypeAdapter(schema).validate_python(values, strict=True)
    except ValidationError as error:
        where = "" if file is None else f"{file}: "
        raise UserError(f"{where}{first_mistake(error)}") from None


def first_mistake(error: ValidationError) -> str:
    """The first mistake of several in one line, for values that a file holds: the value's name, and what it must be."""
    first = error.errors(include_url=False)[0]
    reason = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # a rule between several values, which names them itself
        return reason

    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"{name}: {reason}"
    return f"{name}: {reason}, got {first['input']!r:.80}"
